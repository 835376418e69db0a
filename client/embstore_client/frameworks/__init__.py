"""The common parts of the adapters `embstore_client.torch`, `.jax` and `.keras`. These modules
import no framework.

backed       an adapter: tables, their store, its steps, and a checkpoint of all of them
tables       the tables and features of a module
padding      ids that stand for no row
connection   the store of a module, even after the module was sent to another process
occurrences  ids in arrays of several shapes, split into keys and bags
rows         the source of a forward's rows: the store, or an announced step
gradients    the gradients of backward passes, in the order of the forwards
steps        gradients are kept until a step is sent, in a loop of announced steps or outside
clipping     the norm of gradients, and the factor that reduces it to a bound
ending       how ranks wait for each other at the end of their batches
scaling      a loss scaler's verdict on a step
pretrained   initial rows of a table that were trained elsewhere
marker       a marker in a file of weights, which stands for the rows that the file lacks
saving       a checkpoint of the store, and a file of the framework, under one label
"""
