"""Files of a repository on the Hugging Face hub: the local cache first, then the hub.

Only small files are fetched whole here (configurations, indexes, tokenizers), and weights where a
model is to be run. What weights alone need is read by ranges (:mod:`.remote`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from interp.errors import CheckpointError
from interp.weights.head_weights.tensors import read_index

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"


def cached_snapshot(name: str, revision: str | None) -> Path | None:
    """The folder of a repository's files in the local cache; None where weights are lacking.

    Raises:
        CheckpointError: if the name is none that a repository can have.
    """
    config = _cached_file(name, _CONFIG, revision)
    return config.parent if config is not None and _is_complete(config.parent) else None


def whole_snapshot(name: str, revision: str | None) -> Path:
    """Download a repository's configuration and weights; the folder they are in.

    Raises:
        CheckpointError: if the hub cannot be reached, refuses, or has no safetensors of this name.
    """
    config = hub_file(name, _CONFIG, revision)
    if download(name, SINGLE, revision) is None:
        for shard in set(read_index(hub_file(name, INDEX, revision)).values()):
            download(name, shard, revision)
    return config.parent


def hub_file(name: str, file: str, revision: str | None) -> Path:
    """Download a file without which a repository is no readable checkpoint.

    Args:
        name: The repository's id.
        file: ``config.json`` or the index of the safetensors files.
        revision: A branch, tag or commit; None for the default branch.

    Returns:
        The local path of the file.

    Raises:
        CheckpointError: if there is none, or the hub cannot be reached or refuses.
    """
    found = download(name, file, revision)
    if found is None and file == _CONFIG:
        raise CheckpointError(f"{name} on the hub has no config.json: it is not a model")
    if found is None:
        raise CheckpointError(
            f"{name} on the hub has neither {SINGLE} nor {INDEX}: pickled weights can run "
            "code when loaded and are never opened; look for a safetensors revision"
        )
    return found


def fetch_if_there(name: str, files: Sequence[str], revision: str | None = None) -> list[str]:
    """Which small files of a hub repository are in the local cache, after fetching those it has.

    Without a connection it is what the cache holds.

    Raises:
        CheckpointError: if the connection to the hub fails.
    """
    cached = [file for file in files if _cached_file(name, file, revision) is not None]
    if cached:
        return cached
    try:
        reach_hub(name)
    except CheckpointError:
        return []
    return [file for file in files if download(name, file, revision) is not None]


def reach_hub(name: str) -> None:
    """Check that the Hugging Face hub can be reached, with one request of at most 10 s.

    Without this check the hub's own client would print warnings and retry for half a minute.

    Args:
        name: The id of the repository that is wanted, for the error message.

    Raises:
        CheckpointError: if the connection fails. An HTTP error status is no failure.
    """
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception as error:  # which library's errors these are differs between hub versions
        raise CheckpointError(
            f"{name!r} is no local path, is not in the local hub cache, and the hub cannot be "
            f"reached ({error}): download it first or give a folder"
        ) from error


def download(name: str, file: str, revision: str | None) -> Path | None:
    """The local path of a file fetched from the hub; None where the repository has no such file.

    Raises:
        CheckpointError: if the hub refuses or stops answering.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        with hub_errors(name, file, revision):
            return Path(hf_hub_download(name, file, revision=revision))
    except EntryNotFoundError:
        return None


@contextmanager
def hub_errors(name: str, file: str, revision: str | None) -> Iterator[None]:
    """Say in one line what the hub refuses; that a file is not there is passed on as it is.

    Raises:
        CheckpointError: for what the hub's client raises, but ``EntryNotFoundError``.
    """
    from huggingface_hub import errors as hub

    try:
        yield
    except hub.GatedRepoError as error:
        raise CheckpointError(
            f"{name} on the hub asks for its licence to be accepted: log in and accept it"
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{name!r} is neither a local path nor a repository on the hub that can be seen"
        ) from error
    except hub.RevisionNotFoundError as error:
        raise CheckpointError(f"{name} on the hub has no revision {revision!r}") from error
    except hub.LocalEntryNotFoundError as error:
        raise CheckpointError(f"the hub stopped answering while {name} was fetched") from error
    except (hub.EntryNotFoundError, CheckpointError):
        raise
    except Exception as error:  # which library's errors these are differs between hub versions
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"cannot fetch {file} of {name} from the hub: {first}") from error


def _is_complete(snapshot: Path) -> bool:
    index = snapshot / INDEX
    if (snapshot / SINGLE).is_file() or not index.is_file():
        return (snapshot / SINGLE).is_file()
    return all((snapshot / shard).is_file() for shard in read_index(index).values())


def _cached_file(name: str, file: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError as error:
        raise CheckpointError(f"{name!r} is neither a local path nor a hub id: {error}") from error
    return Path(found) if isinstance(found, str) else None
