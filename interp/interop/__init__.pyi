from interp.interop.activations import activation_batches as activation_batches
from interp.interop.circuit import circuit_of_roles as circuit_of_roles
from interp.interop.circuit import write_circuit as write_circuit
from interp.interop.hugging_face_rows import hugging_face_dataset as hugging_face_dataset
from interp.interop.parquet import read_parquet as read_parquet
from interp.interop.parquet import write_parquet as write_parquet
