"""The model. Lazy: `ablate.model.config` and `ablate.model.count` must stay importable without
torch.
"""
