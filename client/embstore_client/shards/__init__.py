"""A cluster of shards as one executor.

A shard is a server like any other, but stores only some partitions of every table (contract.md,
rule 12). Commands are values, so the layer between a trainer and the shards is one more executor,
the **router**. It splits a command by partition, sends the parts concurrently, and joins the
answers in the order of the call.

    split         which keys of a call each shard owns
    write_pauses  retries while a shard does not accept writes for a moment
    router        the executor: shards, their tables, concurrent calls, by one map
    halves        commands that some shards have executed, and others have not
    following     the executor by the newest map
    rows          commands that read and write rows
    finite        gradients whose sums no shard alone can check
    places        the router's records of the members of sessions
    sessions      sessions are opened, joined, left; steps are announced
    steps         rows of announced steps
    finishing     steps are finished on all shards
    whole         commands of the whole cluster, each of which is split and joined in its own way
    stats         stats that add up, and rates computed from the sums
    checkpoints   one label on all shards, at one barrier
    digests       leaves of all shards, combined; scans likewise
    frequencies   profiles and hot sets, split and merged

**Order.** Every command that writes is sent to every shard, even to shards that own none of its
keys. Therefore t and table ids are the same everywhere. Command numbers are the same, too, unless a
command was applied by some shards only: a restore to a checkpoint then makes t and table ids equal
again, but not the command numbers. A router sends commands that write one after the other: it sends
all parts of one command before the next command. Steps have an order of their own. If several
clients write concurrently, each shard executes commands serially, but the order may differ between
shards. The order matters if updates of one row do not commute. It also determines the t that an
update of Adam uses.

**All or none.** A call that one shard would refuse and another would accept is refused here, before
it is sent. Examples are keys out of range and sums that are not finite. All other commands that
write, except updates, are first checked by every shard (`halves`). If a shard that logs its
commands restarts, the router waits for the shard. A shard can fail in other ways: its disk is full
during an update, or it stays away for longer than the deadline. Then OutcomeUnknownError is raised
if other shards have executed their parts. A step is sent to the failed shard again. A command that
was checked is sent again by its caller. After an update the shards stay in different states until a
checkpoint is restored.
"""
