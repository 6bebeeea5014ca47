"""Training loops that go on with another number of processes: sampler, loader, accumulation.

Import the parts from their modules: ``sampler``, ``loader``, ``trainer``. All but ``share`` need
torch.
"""
