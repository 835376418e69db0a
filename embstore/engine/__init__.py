"""The embedded executor, which executes commands on the tables of this process.

engine   the executor: tables, look-ahead and access frequencies composed; its life
rows     the handlers of commands that read and write rows
admin    the handlers of tables, durability, the cache, stats
stats    the store's state and counters
opening  `embstore.open`
"""
