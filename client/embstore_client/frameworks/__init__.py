"""The common parts of the adapters `embstore_client.torch`, `.jax` and `.keras`. NumPy alone.

backed       an adapter: tables, their store, its steps, and a checkpoint of all
tables       the tables and features of a module
padding      ids that stand for no row
connection   the store of a module, also of one that was sent to another process
occurrences  ids in the shapes of arrays, taken apart into keys and bags
rows         where a forward's rows come from: the store, or an announced step
gradients    the gradients of backward passes, in the order of the forwards
steps        gradients are kept until a step is sent, in a loop of announced steps or outside
clipping     the norm of gradients, and the factor that brings it down to a bound
ending       several ranks at the end of their batches
scaling      the verdict of a scaler of losses on a step
pretrained   rows that a table begins with
marker       a mark, in a file of weights, of the rows that it lacks
saving       a checkpoint of the store, and a file of the framework, under one label
"""
