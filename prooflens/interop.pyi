from interp.store.tensors import activation_batches as activation_batches
