"""What the adapters of frameworks share: `embstore_client.torch`, and those beside it. NumPy alone.

backed       what an adapter is: tables, their store, its steps, and a checkpoint of all
tables       which tables and features a module has
padding      ids that are none
connection   the store of a module, also of one that was sent to another process
occurrences  ids in the shapes of arrays, taken apart into keys and bags
rows         where a forward's rows come from: the store, or an announced step
gradients    what backward passes have left, in the order of the forwards
steps        gradients are kept until a step is sent, in a loop of announced steps or outside
clipping     the norm of gradients, and what brings it down to a bound
ending       several ranks at the end of their batches
scaling      what a scaler of losses has found of a step
pretrained   rows that a table begins with
marker       what a file of weights says of rows that it has not
saving       a checkpoint of the store, and a file of the framework, under one label
"""
