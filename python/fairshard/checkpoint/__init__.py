"""Checkpoints that any number of ranks can go on from, in Python and in C++, without pickle."""

from fairshard.checkpoint._checkpoint import Checkpoint, LoadReport, latest, list_steps
from fairshard.checkpoint._parts import Rng
from fairshard.checkpoint._state_dicts import model_state_dict, optimizer_state_dict

__all__ = ["Checkpoint", "LoadReport", "Rng", "latest", "list_steps", "model_state_dict", "optimizer_state_dict"]
