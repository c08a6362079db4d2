"""What TensorBoard shows."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read_curves(folder: str | Path) -> dict[str, list[float]]:
    """The values of each curve, by its name."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
