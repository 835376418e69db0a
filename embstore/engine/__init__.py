"""The embedded executor, which executes commands on the tables of this process.

engine   the executor, composed of tables, look-ahead and access frequencies; opening and closing
rows     the handlers of commands that read and write rows
admin    the handlers of commands on tables, durability, the cache and stats
stats    the store's state and counters
opening  `embstore.open`
"""
