"""Training loops that can continue with another number of processes: sampler, loader, accumulation.

Import the parts from their modules: ``sampler``, ``loader``, ``trainer``. All except ``share`` need
torch.
"""
