"""What trains the demo's model: NumPy, or a framework through its adapter.

    registry        which there are, and what each needs
    learner         what the loop of training asks of one
    numpy_learner   dlrm.py, through the store itself
    torch_learner   the same model in Torch, through embstore_client.torch

All begin with the same dense weights and train on the same batches, so their losses are alike; and
each is checked by the same dense tables in memory, to the bit. To add one, write its learner, and
name it in the registry.
"""
