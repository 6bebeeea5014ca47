"""Training loops that can continue with another number of processes: sampler, loader, accumulation.

Import the parts from their modules: ``loader`` (also the sampler), ``trainer``, ``share``. All
except ``share`` need torch.
"""
