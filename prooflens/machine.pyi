from interp.environment import environment as environment
from interp.machine import check_device as check_device
from interp.ray_tasks import need_backend as need_backend
from interp.threads import one_thread as one_thread
from trained.stack_runner import cores as cores
