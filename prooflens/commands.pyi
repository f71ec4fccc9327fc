from interp.ray_tasks import Backend as Backend
from prooflens.cli.main import command_names as command_names
from prooflens.cli.running import run_app as run_app
from prooflens.cli.steps import progress as progress
from prooflens.cli.usage import App as App
from prooflens.cli.usage import Device as Device
from prooflens.cli.usage import facts as facts
