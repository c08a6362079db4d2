"""What is needed of Lightning, from the package of it that the program uses."""

import importlib
import sys

_is_older = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
_trainer, _fabric = (
    ("pytorch_lightning", "lightning_fabric") if _is_older else ("lightning.pytorch", "lightning.fabric")
)

Callback = importlib.import_module(f"{_trainer}.callbacks").Callback
TrainerDDPStrategy = importlib.import_module(f"{_trainer}.strategies").DDPStrategy
SingleDeviceStrategy = importlib.import_module(f"{_trainer}.strategies").SingleDeviceStrategy
TRAINER_REGISTRY = importlib.import_module(f"{_trainer}.strategies").StrategyRegistry
FabricDDPStrategy = importlib.import_module(f"{_fabric}.strategies").DDPStrategy
FABRIC_REGISTRY = importlib.import_module(f"{_fabric}.strategies").STRATEGY_REGISTRY
