"""Commands: every operation (verb) of a store, as a value.

A store is a pure function of the ordered commands that it acknowledged (docs/contract.md, rule 5).
A command is a frozen dataclass, which declares everything that other layers need to know:

- its arguments, whose annotations contain dtype and shape
- the type of its result (the argument of `Command`)
- the kind of its effect (`effect`)
- the condition for sending it again (`retry`)
- the right that its sender needs (`right`; `embstore.rights` finds the tables to which the right
  applies)
- the rows that it `reads`
- the function that joins the answers of shards (`join`)
- rarer properties (`traits`)

`embstore.parts` finds the tables and arrays of a command. Code that forwards commands uses the
properties of a command, and does not depend on its verb. An **Executor** executes commands: it is
the engine of an embedded store, a client over a transport, or any other layer between a caller and
the rows. The handles (`embstore.handles`) make commands from a user's calls. `checks` brings the
arguments of commands into normal form. The wire format (`embstore_proto.verbs`) encodes any command
by its fields.

The effect decides how a server treats a verb:

    READS    executed on the engine, in order
    WRITES   executed like READS; rows, tables or the t of a table (the number of its updates)
             change, so the command takes a number (rule 5)
    TUNES    executed like READS; rows do not change, but their location or durability does
    LONG     executed on a thread of its own, which uses the engine for one piece at a time
    PROMPT   answered on arrival, without the engine, before all waiting work

A command that names a table has the fields `table` and `table_id`. If the id is given, the command
is refused when the name no longer belongs to the table with that id. The field `name` is that of
a session, and `member` is the secret of a member of that session. `members` are the secrets of the
sender in all of its sessions.

    base         the properties of commands
    joins        the functions that join the answers of shards
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
