"""A cluster of shards as one executor.

A shard is a server like any other, that has some partitions of every table (contract.md, rule 12).
Commands are values, so the layer between a trainer and the shards is one more executor, the
**router**: it splits a command by partition, sends the parts concurrently, and joins the answers in
the order of the call.

    split         which of some keys each shard has
    patience      a shard that takes no writes for a moment
    router        the executor: shards, their tables, concurrent calls, by one map
    following     the executor by the newest map
    rows          commands that read and write rows
    finite        gradients that no shard alone can judge
    places        the router's knowledge of the members of sessions
    sessions      opened, joined, left; steps announced
    steps         rows of announced steps
    finishing     steps finished on all shards
    whole         commands of the whole cluster that are like no other
    stats         the stats that add up, and the rates of the sums
    checkpoints   one label on all shards, at one barrier
    digests       leaves of all shards, combined; scans likewise
    frequencies   profiles and hot sets, split and merged

**Order.** Every shard gets every command that writes, also where it has none of its keys, so that t
and table ids are the same everywhere (command numbers too, until shards that had come to different
ones go back to a checkpoint). One router sends one such command after the other, all its parts
before the next. Steps have an order of their own. Where several clients write concurrently, each
shard is serial, and each in its own order: that matters where updates of one row do not commute,
and for the t that an update of Adam has.

**All or none.** A call that one shard would refuse, and another not, is refused here before it is
sent: keys out of range, sums that are not finite. A shard that is started again where commands are
logged is waited for. One that fails otherwise (its disk is full, it is gone for longer than the
deadline) raises its error, and the others have applied their parts: a step is sent to it again;
after another command the cluster is as its shards are, until a checkpoint is restored.
"""
