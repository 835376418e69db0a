"""The demo's model: in NumPy, or in a framework through its adapter.

    registry        the frameworks, and the packages of each
    learner         the interface between a framework and the training loop
    numpy_learner   dlrm.py, through the store itself
    torch_learner   the same model in Torch, through embstore_client.torch

All learners begin with the same dense weights and train on the same batches, so their losses are
similar. The dense tables in memory check the rows of each learner to the bit. To add a framework,
write its learner, and name it in the registry.
"""
