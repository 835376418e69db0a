"""The embedded executor: what executes commands on the tables of this process.

engine   the executor: tables, look-ahead and access frequencies composed; its life
rows     the handlers of commands that read and write rows
admin    those of tables, durability, the cache, stats
stats    what a store is and did
opening  `embstore.open`
"""
