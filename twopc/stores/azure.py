"""Azure Blob Storage through adlfs, with errors that are reliable enough for a commit.

adlfs passes on most errors of Azure's client, none of which is an OSError. It treats any 404 as an absent file, even a
404 from a proxy. Here each error is an OSError, as listed in ``errors``. A missing answer is ``ECONNABORTED``, because
``ETIMEDOUT`` would make a TimeoutError, which fsspec replaces with its own.

All uses of adlfs's private names are in this module. They were read in 2026.8.0; the extra ``azure`` excludes releases
from 2028 on. Without ``_timeout_kwargs`` or ``_details`` the first request would fail, and without ``_config`` of
Azure's client the first upload.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Iterator
from typing import Any

from adlfs import AzureBlobFile, AzureBlobFileSystem  # type: ignore[import-untyped]
from azure.core.exceptions import AzureError, ClientAuthenticationError
from fsspec import asyn

from twopc.stores.errors import is_untrusted, of_status

_NUMBERS = {
    **dict.fromkeys(("ContainerNotFound", "ContainerBeingDeleted"), errno.ENODEV),
    **dict.fromkeys(("BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"), errno.EEXIST),
    **dict.fromkeys(("PublicAccessNotPermitted", "AccountIsDisabled"), errno.EACCES),
    "InvalidBlockList": errno.ENOENT,
}
"""Error codes that have the same meaning with any status."""


class AzureClient(AzureBlobFileSystem):  # type: ignore[misc]  # adlfs has no types
    """adlfs's client, with its options and without its cache of listings. Every method that this package uses raises
    only OSErrors.

    A folder is everything below its name and a slash. adlfs itself lists all names that begin with the folder's name,
    and hides a folder beside a blob of the same name.
    """

    _has_had_an_answer = False

    async def _call(self, path: str, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of Azure's client for the blob at ``path``, such as ``container/folder/name``."""
        with self._translating():
            return await getattr(self._blob(path), method)(*arguments, **self._timeout_kwargs, **keywords)

    call = asyn.sync_wrapper(_call)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **keywords: Any) -> None:
        with self._translating():
            blob = self._blob(path)
            # In one request. Azure's client would send 64 MiB or more in blocks, and two writers would replace each
            # other's blocks.
            config = blob._config  # noqa: SLF001  # adlfs does not pass on the client's option
            config.max_single_put_size = max(config.max_single_put_size, len(value))
            await blob.upload_blob(value, overwrite=mode != "create", **self._timeout_kwargs, **keywords)

    pipe_file = asyn.sync_wrapper(_pipe_file)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **keywords: Any) -> bytes:
        length = None if end is None else end - (start or 0)
        keywords = {"max_concurrency": self.max_concurrency or 1, **self._timeout_kwargs, **keywords}
        with self._translating():
            stream = await self._blob(path).download_blob(start if end is None else start or 0, length, **keywords)
            data: bytes = await stream.readall()
            return data

    async def _rm_file(self, path: str, **keywords: Any) -> None:
        await self._call(path, "delete_blob", **keywords)

    async def _info(self, path: str, **keywords: Any) -> dict[str, Any]:  # noqa: ARG002  # adlfs's options
        path = path.rstrip("/")
        with contextlib.suppress(FileNotFoundError):
            if "/" in path:
                return await self._describe(await self._call(path, "get_blob_properties"))
        if await self._isdir(path):
            return {"name": path, "size": None, "type": "directory"}
        raise FileNotFoundError(errno.ENOENT, "no such blob", path)

    async def _exists(self, path: str, **keywords: Any) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return bool(await self._info(path, **keywords))
        return False

    async def _isdir(self, path: str) -> bool:
        async for _ in self._below(path, "list_blobs", results_per_page=1):
            return True
        return False

    async def _ls(self, path: str, detail: bool = True, **keywords: Any) -> list[Any]:  # noqa: ARG002  # adlfs's
        found = [await self._describe(each) async for each in self._below(path, "walk_blobs", include=["metadata"])]
        if not found:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return found if detail else sorted({each["name"] for each in found})

    async def _find(self, path: str, detail: bool = False, prefix: str = "", **keywords: Any) -> Any:  # noqa: ARG002
        listing = self._below(path, "list_blobs", prefix, include=["metadata"])
        found = [await self._describe(each) async for each in listing]
        files = {each["name"]: each for each in found if each["type"] == "file"}
        return files if detail else [*files]

    async def _names_from(self, path: str, first: str, limit: int) -> list[str]:
        """Return up to ``limit`` names below a folder, in order, starting at ``first``."""
        before = f"{path.partition('/')[2]}/".lstrip("/")
        names: list[str] = []
        async for found in self._below(path, "list_blobs", start_from=before + first, results_per_page=limit):
            names.append(found.name.removeprefix(before))
            if len(names) == limit:
                break
        return names

    names_from = asyn.sync_wrapper(_names_from)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **keywords: Any) -> _File:
        return _File(self, path, mode, block_size or self.blocksize, **keywords)

    async def _below(self, path: str, method: str, prefix: str = "", **keywords: Any) -> AsyncIterator[Any]:
        """Yield the items that Azure's client lists below a folder under names that begin with ``prefix``."""
        container, _, folder = path.rstrip("/").partition("/")
        own = f"{folder}/".lstrip("/")
        client = self.service_client.get_container_client(container)
        with self._translating():
            begins = {"name_starts_with": own + prefix, **self._timeout_kwargs}
            async for found in getattr(client, method)(**begins, **keywords):
                if found.name != own:  # some programs create a blob for the folder itself
                    yield found

    async def _describe(self, found: Any) -> dict[str, Any]:
        """Return a description in fsspec's form."""
        [shown] = await self._details([found])
        return dict(shown)

    def _blob(self, path: str) -> Any:
        container, _, name = path.partition("/")
        return self.service_client.get_blob_client(container, name)

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._has_had_an_answer |= hasattr(error, "status_code") and not isinstance(
                error, ClientAuthenticationError
            )
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise translate(error, self._has_had_an_answer) from None  # the original may show a signature
        self._has_had_an_answer = True


class _File(AzureBlobFile):  # type: ignore[misc]
    """A blob that is read or written in parts."""

    def _fetch_range(self, *arguments: Any, **keywords: Any) -> Any:
        with self.fs._translating():  # noqa: SLF001  # the other half of one module
            return super()._fetch_range(*arguments, **keywords)

    def _initiate_upload(self, *arguments: Any, **keywords: Any) -> Any:
        with self.fs._translating():  # noqa: SLF001
            return super()._initiate_upload(*arguments, **keywords)

    def _upload_chunk(self, *arguments: Any, **keywords: Any) -> Any:
        with self.fs._translating():  # noqa: SLF001
            return super()._upload_chunk(*arguments, **keywords)


def translate(error: Exception, has_had_an_answer: bool = False) -> OSError:
    """Translate an error of Azure's client, or of a library below it. ``has_had_an_answer``: whether the store has
    answered this client before, which shows that the client's credentials were right."""
    if isinstance(error.__cause__, AzureError):  # adlfs wraps errors of an upload
        error = error.__cause__
    code = _code(error)
    text = str(error).partition("\n")[0].strip()  # the other lines repeat the reply
    return OSError(_meaning(error, code, has_had_an_answer), f"{code or type(error).__name__}: {text}")


def _code(error: Any) -> str | None:
    """Return the error code of the reply. The code is read from the headers, because a reply to HEAD has no body."""
    response = getattr(error, "response", None)
    code: str | None = None if response is None else response.headers.get("x-ms-error-code")
    return code


def _meaning(error: Exception, code: str | None, has_had_an_answer: bool) -> int:
    if code in _NUMBERS:
        return _NUMBERS[code]
    status = getattr(error, "status_code", None)
    if status is None:
        return _without_a_reply(error, has_had_an_answer)
    number = of_status(status)
    if isinstance(error, ClientAuthenticationError) and number not in (errno.EBUSY, errno.ENOSYS):
        return errno.EACCES  # Microsoft Entra ID also sends 400
    return errno.EBUSY if number == errno.ENOENT and not code else number  # without a code, it is a proxy's


def _without_a_reply(error: Exception, has_had_an_answer: bool) -> int:
    """Return the errno for a request that was not sent or got no reply.

    azure-identity raises the same errors for missing credentials and for an outage of their source, such as a virtual
    machine's metadata service.
    """
    if is_untrusted(error):
        return errno.EACCES
    if isinstance(error, ClientAuthenticationError):
        return errno.EBUSY if has_had_an_answer else errno.EACCES
    return errno.ECONNABORTED if isinstance(error, AzureError | ConnectionError | TimeoutError) else errno.EIO
