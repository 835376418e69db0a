"""Commands: every verb of a store, as a value.

A store is a pure function of the ordered commands that it acknowledged (docs/contract.md, rule 5).
A command is a frozen dataclass: its arguments, with dtype and shape said once in the annotations;
its result type (the argument of `Command`); the kind of its effect (`effect`); how it is sent a
second time (`retry`); the right of its sender (`right`; `embstore.rights` says on which tables);
the rows that it `reads`; how the answers of shards are joined (`join`); and rarer properties
(`traits`). `embstore.parts` finds its tables and arrays. Code that passes commands on asks for
these, and not which verb it is. An **Executor** executes commands: the engine of an embedded store,
a client over a transport, and any other layer between a caller and the rows. The handles
(`embstore.handles`) make commands of a user's calls; `checks` brings their arguments into normal
form; the wire (`embstore_proto.verbs`) sends any command by its fields.

The effect decides how a server treats a verb:

    READS    in its turn on the engine
    WRITES   likewise; rows, t or tables change, so the command is counted (rule 5)
    TUNES    likewise; where rows are changes, or which are durable, but no row
    LONG     takes long: on a thread of its own, which takes the engine piece by piece
    PROMPT   needs no engine: answered on arrival, before all work that waits

A field that names a table has `table` and `table_id`: where the id is given, the command is refused
unless the name still means that table. A session is named by `name`, one of its members by
`member`; `members` are the sender's own.

    base         the properties of commands
    joins        answers of shards as one
    executor     the interface of objects that execute commands
    process, tables, durability, shards, rows, scans, sessions, steps, frequencies
                 the verbs, by subject
"""

from embstore.commands.base import *
from embstore.commands.durability import *
from embstore.commands.executor import *
from embstore.commands.frequencies import *
from embstore.commands.process import *
from embstore.commands.rows import *
from embstore.commands.scans import *
from embstore.commands.sessions import *
from embstore.commands.shards import *
from embstore.commands.steps import *
from embstore.commands.tables import *
