"""Files of a repository on the Hugging Face hub: from the local cache first, then from the hub.

Only small files are downloaded whole here (configurations, indexes, tokenizers), and weights only
if a model is to be run. Weight-only analyses read tensors by ranges (:mod:`.remote`).
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
    """Return the folder of a repository's files in the local cache; None if weights are missing
    there.

    Raises:
        CheckpointError: if the name cannot be a repository's.
    """
    config = _cached_file(name, _CONFIG, revision)
    return config.parent if config is not None and _is_complete(config.parent) else None


def whole_snapshot(name: str, revision: str | None) -> Path:
    """Download a repository's configuration and weights, and return the folder that they are in.

    Raises:
        CheckpointError: if the hub cannot be reached, refuses, or has no safetensors of this name.
    """
    config = hub_file(name, _CONFIG, revision)
    if download(name, SINGLE, revision) is None:
        for shard in set(read_index(hub_file(name, INDEX, revision)).values()):
            download(name, shard, revision)
    return config.parent


def hub_file(name: str, file: str, revision: str | None) -> Path:
    """Download a file that every readable checkpoint must have.

    Args:
        name: The repository's id.
        file: ``config.json`` or the index of the safetensors files.
        revision: A branch, tag or commit; None for the default branch.

    Returns:
        The local path of the file.

    Raises:
        CheckpointError: if the repository has no such file, or the hub cannot be reached or
            refuses.
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
    """Return which of some small files of a hub repository are in the local cache.

    If none is, those that the repository has are downloaded first. Without a connection to the hub,
    nothing is downloaded and the list is empty.

    Raises:
        CheckpointError: if the hub refuses or stops answering.
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
    """Download a file from the hub and return its local path; None if the repository has no such
    file.

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
    """Turn errors of the hub's client into one line; a missing file's ``EntryNotFoundError`` is
    kept.

    Raises:
        CheckpointError: for every other error of the client.
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
