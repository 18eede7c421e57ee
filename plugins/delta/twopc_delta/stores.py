"""The differences between the object stores for tables: S3, Azure and Google Cloud Storage.

Two clients access each table: fsspec its files, delta-rs its log. Users give fsspec's options, which this module
translates for delta-rs. An option without a counterpart is refused, because the two clients would access different
locations.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar
from urllib.parse import unquote

import orjson

from twopc.errors import ConfigurationError
from twopc.stores.places import file_system

_LOCK_OF_DYNAMODB = "AWS_S3_LOCKING_PROVIDER"
_CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"
_EMULATOR_OF_GCS = "STORAGE_EMULATOR_HOST"

_ACCOUNT = re.compile(r"(.+)\.(?:dfs|blob)\.core\.windows\.net")
"""The host in an Azure URL, from which adlfs takes the account."""


_SIGNATURE = re.compile(r"sig=([^&]+)")


_NO_CREDENTIALS = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
"""Credentials for unsigned requests, as emulators accept them. With ``google_skip_signature``, delta-rs would still
sign writes."""


class Store(ABC):
    """One kind of object store.

    Attributes:
        name: the store's name in messages.
        protocols: the protocols of its URLs; the first one is delta-rs's.
        package: the package of fsspec's client, installed by the extra ``extra``.
        names: fsspec's option → delta-rs's option; "" for an option that only fsspec needs, and that does not change
            which objects a client accesses.
        inside: the same for options nested in an option.
        secrets: delta-rs's options whose values must not appear in messages.
        client_options: further options for fsspec's client.
        removes_many: whether one request can remove up to a thousand objects.
        beside_spark: why Spark must not write to the table while a query runs.
        advice: the end of the error for a store that the sink can't use.
    """

    name: ClassVar[str]
    protocols: ClassVar[tuple[str, ...]]
    package: ClassVar[str]
    extra: ClassVar[str]
    names: ClassVar[Mapping[str, str]]
    inside: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    secrets: ClassVar[tuple[str, ...]]
    client_options: ClassVar[Mapping[str, Any]] = {}
    removes_many: ClassVar[bool] = False
    beside_spark: ClassVar[str]
    advice: ClassVar[str] = ""

    def spelling(self, protocol: str) -> str:  # noqa: ARG002  # all protocols name the same location
        """Return the protocol for the table's URL in messages."""
        return self.protocols[0]

    def path_of(self, rest: str) -> str:
        """Return the bucket and folder, as fsspec's client names them. ``rest`` is a URL without its protocol."""
        return rest

    def client(self, url: str, options: Mapping[str, Any]) -> Any:
        """Return fsspec's client. It caches no listings, because other processes write to the store, too. Raises
        OSError."""
        try:
            return file_system(url, **{**options, "use_listings_cache": False, **self.client_options})[0]
        except (TypeError, ValueError) as error:
            text = f"its client can't be made ({type(error).__name__}: {error})"
            raise OSError(errno.EACCES, text) from None

    def require_usable(self) -> None:
        """Raise ConfigurationError if fsspec's client is not installed, or the environment asks for something
        unsupported."""
        if find_spec(self.package) is None:
            raise ConfigurationError(
                f"the delta sink needs the package {self.package} for {self.name}. Run pip install"
                f" 'twopc-delta[{self.extra}]' here and on every executor"
            )

    def delta_options(self, rest: str, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the options with delta-rs's names. ``rest`` is the table's URL without its protocol.

        Raises:
            ConfigurationError: an option has no counterpart.
        """
        found: dict[str, str] = {}
        inside = [(options.get(name) or {}, names, f"{name}.") for name, names in self.inside.items()]
        outside = {name: value for name, value in options.items() if name not in self.inside}
        for given, names, prefix in ((outside, self.names, ""), *inside):
            for name, value in given.items():
                if name not in names:
                    raise ConfigurationError(
                        f"the option 'storage_options' of the delta sink has no {prefix + str(name)!r} for {self.name}."
                        f" It has: {', '.join(self._known())}."
                    )
                if names[name] and value is not None:
                    found[names[name]] = str(value).lower() if isinstance(value, bool) else str(value)
        self._complete(found, rest, options)
        if any(value.startswith("http://") for value in found.values()):
            found["allow_http"] = "true"
        return found

    def _known(self) -> list[str]:
        return [*self.names, *(f"{outer}.{name}" for outer, names in self.inside.items() for name in names)]

    def _complete(self, found: dict[str, str], rest: str, options: Mapping[str, Any]) -> None:  # noqa: B027
        """Adapt options for which a new name is not enough. Changes ``found`` in place."""

    @abstractmethod
    def listed(self, client: Any, folder: str, after: str, limit: int) -> tuple[list[str], bool]:
        """Return the first ``limit`` names of a folder after ``after``, in the store's order, and whether there may be
        more."""

    def secrets_in(self, rest: str, options: Mapping[str, Any]) -> Iterator[str]:
        """Yield the values of credentials, in each form in which a server or a URL may repeat them."""
        found = self.delta_options(rest, options)
        yield from (found[name] for name in self.secrets if name in found)

    def meaning(self, error: Exception) -> OSError | None:
        """Map an error of the client to an OSError with an errno that ``twopc.stores.errors`` classifies; None to leave
        it unchanged. An unknown error must not look like a disk's error, which may be temporary."""
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.ENODEV):
            return OSError(errno.EPROTO, error.strerror)
        return None


class _S3(Store):
    name = "S3"
    protocols = ("s3", "s3a")
    package, extra = "s3fs", "s3"
    names: ClassVar = {
        "key": "aws_access_key_id",
        "secret": "aws_secret_access_key",
        "token": "aws_session_token",
        "anon": "aws_skip_signature",
        "endpoint_url": "aws_endpoint_url",
    }
    inside: ClassVar = {
        "client_kwargs": {"endpoint_url": "aws_endpoint_url", "region_name": "aws_region"},
        "s3_additional_kwargs": {
            "ServerSideEncryption": "aws_server_side_encryption",
            "SSEKMSKeyId": "aws_sse_kms_key_id",
            "BucketKeyEnabled": "aws_sse_bucket_key_enabled",
            "ACL": "",
        },
        "config_kwargs": dict.fromkeys(
            (
                *("connect_timeout", "read_timeout", "retries", "max_pool_connections", "tcp_keepalive"),
                *("request_checksum_calculation", "response_checksum_validation", "user_agent_extra"),
            ),
            "",
        ),
    }
    secrets = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    client_options: ClassVar = {"fixed_upload_size": True}  # Cloudflare R2 requires equal parts, except for the last
    removes_many = True
    beside_spark = "Spark's log stores for S3 do not ask the store to refuse a version that exists."
    advice = (
        " Headers that a bucket asks for, such as for encryption, are in 'storage_options' under"
        " 's3_additional_kwargs'."
    )

    def require_usable(self) -> None:
        super().require_usable()
        if os.environ.get(_LOCK_OF_DYNAMODB):
            raise ConfigurationError(
                f"{_LOCK_OF_DYNAMODB} is set: the table's other writers take turns by a lock in DynamoDB, which"
                " delta-rs no longer supports. They could overwrite a commit of this sink. Have all writers use S3's"
                " conditional puts, and unset the variable."
            )

    def listed(self, client: Any, folder: str, after: str, limit: int) -> tuple[list[str], bool]:
        bucket, key, _ = client.split_path(folder)
        prefix = f"{key}/"
        found = client.call_s3(
            "list_objects_v2", Bucket=bucket, Prefix=prefix, StartAfter=prefix + after, MaxKeys=limit
        )
        names = [each["Key"].removeprefix(prefix) for each in found.get("Contents", ())]
        return names, bool(found.get("IsTruncated"))

    def meaning(self, error: Exception) -> OSError | None:
        if isinstance(error, OSError) or not type(error).__module__.startswith(("botocore", "aiobotocore", "aiohttp")):
            return None
        from twopc.stores.s3 import translate  # needs S3's client, which raised this

        number = translate(error).errno
        return OSError(errno.EPROTO if number == errno.EIO else number, str(error))


class _Azure(Store):
    name = "Azure"
    protocols = ("az", "abfs", "abfss")
    package, extra = "adlfs", "azure"
    names: ClassVar = {
        "account_name": "azure_storage_account_name",
        "account_key": "azure_storage_account_key",
        "sas_token": "azure_storage_sas_token",
        "tenant_id": "azure_storage_tenant_id",
        "client_id": "azure_storage_client_id",
        "client_secret": "azure_storage_client_secret",
        "anon": "azure_skip_signature",
        "account_host": "azure_storage_endpoint",
        "connection_string": "",  # contains some of the others
        **dict.fromkeys(("timeout", "connection_timeout", "read_timeout", "max_concurrency"), ""),
    }
    secrets = ("azure_storage_account_key", "azure_storage_sas_token", "azure_storage_client_secret")
    beside_spark = "No test has shown what Spark's log store for Azure does beside this sink."

    _CONNECTION: ClassVar = {
        "accountname": "azure_storage_account_name",
        "accountkey": "azure_storage_account_key",
        "sharedaccesssignature": "azure_storage_sas_token",
        "blobendpoint": "azure_storage_endpoint",
    }
    """Parts of a connection string. Azure's client ignores their case."""

    def spelling(self, protocol: str) -> str:
        return protocol  # Spark and catalogs use the user's spelling

    def path_of(self, rest: str) -> str:
        authority, _, folder = rest.partition("/")
        return f"{authority.partition('@')[0]}/{folder}".rstrip("/")

    def _complete(self, found: dict[str, str], rest: str, options: Mapping[str, Any]) -> None:
        host = rest.partition("/")[0].partition("@")[2]
        if account := _ACCOUNT.fullmatch(host):
            found.setdefault("azure_storage_account_name", account[1])
        if "azure_storage_endpoint" in found:
            found["azure_storage_endpoint"] = f"https://{found['azure_storage_endpoint']}"
        given = str(options.get("connection_string") or os.environ.get(_CONNECTION_STRING) or "")
        parts = {name.lower(): value for name, _, value in (each.partition("=") for each in given.split(";"))}
        found |= {name: parts[part] for part, name in self._CONNECTION.items() if part in parts}
        if own := re.match(r"https?://([^./:]+)\.blob\.", parts.get("blobendpoint", "")):
            found.setdefault("azure_storage_account_name", own[1])
        if "blobendpoint" not in parts and {"accountname", "endpointsuffix"} <= {*parts}:
            protocol = parts.get("defaultendpointsprotocol", "https")
            blobs = f"{parts['accountname']}.blob.{parts['endpointsuffix']}"
            found["azure_storage_endpoint"] = f"{protocol}://{blobs}"
        if not {*self.secrets}.isdisjoint(found):
            found.pop("azure_skip_signature", None)  # adlfs signs requests if it has a key
        used = found.get("azure_storage_account_name")
        if account and used != account[1]:
            raise ConfigurationError(
                f"the table's URL names the account {account[1]!r}, and 'storage_options' or the environment of the"
                f" delta sink {used!r}: leave one of them out"
            )

    def secrets_in(self, rest: str, options: Mapping[str, Any]) -> Iterator[str]:
        for value in super().secrets_in(rest, options):
            yield value
            if signature := _SIGNATURE.search(value):
                yield from (signature[1], unquote(signature[1]))

    def listed(self, client: Any, folder: str, after: str, limit: int) -> tuple[list[str], bool]:
        found = client.names_from(folder, after, limit + 1)  # may include ``after``
        names = [name for name in found if name != after]
        return names[:limit], len(found) > limit


class _Gcs(Store):
    name = "Google Cloud Storage"
    protocols = ("gs", "gcs")
    package, extra = "gcsfs", "gcs"
    names: ClassVar = {
        "endpoint_url": "google_base_url",
        "token": "",  # a method, a file, or a file's content
        **dict.fromkeys(("project", "requests_timeout", "timeout", "default_location"), ""),
    }
    secrets = ("google_service_account_key",)
    beside_spark = "No test has shown what Spark's log store for Google Cloud Storage does beside this sink."

    def _complete(self, found: dict[str, str], rest: str, options: Mapping[str, Any]) -> None:  # noqa: ARG002
        if (emulator := os.environ.get(_EMULATOR_OF_GCS, "")) not in ("", "default"):
            found.setdefault("google_base_url", emulator if "://" in emulator else f"http://{emulator}")
        token = options.get("token")
        if isinstance(token, Mapping):
            found["google_service_account_key"] = orjson.dumps(token).decode()
        elif token == "anon":  # noqa: S105  # a method
            found["google_service_account_key"] = _NO_CREDENTIALS
        elif token not in (None, "google_default"):
            if not os.path.isfile(str(token)):  # noqa: PTH113  # the user's text
                raise ConfigurationError(
                    "the option 'storage_options' of the delta sink takes as 'token' for Google Cloud Storage: anon,"
                    " google_default, the path of a file of credentials, or the contents of a service account's."
                    " delta-rs has no others."
                )
            found["google_application_credentials"] = str(token)

    def secrets_in(self, rest: str, options: Mapping[str, Any]) -> Iterator[str]:
        yield from super().secrets_in(rest, options)
        if isinstance(token := options.get("token"), Mapping):
            for name in ("private_key", "refresh_token", "client_secret"):
                yield " ".join(str(token.get(name) or "").split())  # messages have single blanks

    def listed(self, client: Any, folder: str, after: str, limit: int) -> tuple[list[str], bool]:
        bucket, key, _ = client.split_path(folder)
        prefix = f"{key}/"
        page = {"prefix": prefix, "startOffset": prefix + after, "maxResults": limit + 1}  # may include ``after``
        names, next_page = list[str](), True
        while next_page and len(names) <= limit:  # a page may be short, or empty
            found = client.call("GET", "b/{}/o", bucket, json_out=True, **page)
            names += [each["name"].removeprefix(prefix) for each in found.get("items", ())]
            next_page = page["pageToken"] = found.get("nextPageToken")
        later = [name for name in names if name != after]
        return later[:limit], len(names) > limit


STORES: Mapping[str, Store] = {protocol: store for store in (_S3(), _Azure(), _Gcs()) for protocol in store.protocols}
"""The store of each protocol."""
