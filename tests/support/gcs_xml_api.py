"""The part of Google's XML API that delta-rs uses, as a proxy in front of fake-gcs-server, whose XML API has no uploads
and always lists from the start.

Each request is translated to the JSON API, so the emulator itself checks the condition of an upload.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode
from xml.sax.saxutils import escape

from tests.support.http_proxy import PER_HOP, Answer, HttpProxy, Request

_JSON_API = ("/storage/", "/upload/", "/download/", "/batch/", "/_internal/")
_HOST = "storage.googleapis.com"
"""The host name by which the emulator recognizes a request for an object."""


class GcsXmlApi(HttpProxy):
    """Accepts requests of both APIs, concurrently."""

    def _pass_on(self, request: Request) -> Answer | None:
        try:
            return self._answer(request)
        except (OSError, http.client.HTTPException):  # the server is down, or was killed during its reply
            return None

    def _answer(self, request: Request) -> Answer:
        path, _, query = request.target.partition("?")
        if path.startswith(_JSON_API):
            return self._forward(request, PER_HOP)
        bucket, _, key = path[1:].partition("/")
        if request.method == "PUT":
            return self._put(request, bucket, unquote(key))
        if not key:
            return self._list(bucket, dict(parse_qsl(query)))
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        return self._forward(replace(request, headers={**headers, "Host": _HOST}), PER_HOP)

    def _put(self, request: Request, bucket: str, name: str) -> Answer:
        asked = {"uploadType": "media", "name": name}
        conditions = [value for each, value in request.headers.items() if each.lower() == "x-goog-if-generation-match"]
        if conditions:
            asked["ifGenerationMatch"] = conditions[0]
        done = self._forward(
            Request("POST", f"/upload/storage/v1/b/{bucket}/o?{urlencode(asked)}", {}, request.body), PER_HOP
        )
        if done.status != 200:
            return done
        made = json.loads(done.body)
        return Answer(200, headers=(("ETag", f'"{made["etag"]}"'), ("x-goog-generation", str(made["generation"]))))

    def _list(self, bucket: str, asked: dict[str, str]) -> Answer:
        after = asked.get("start-after", "")
        names = {"prefix": "prefix", "delimiter": "delimiter", "max-keys": "maxResults"}
        page = {names[name]: value for name, value in asked.items() if name in names}
        page |= {"pageToken": asked["continuation-token"]} if "continuation-token" in asked else {"startOffset": after}
        found = self._forward(
            Request("GET", f"/storage/v1/b/{bucket}/o?{urlencode(page, quote_via=quote)}", {}, b""), PER_HOP
        )
        if found.status == 404:
            return Answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if found.status != 200:
            return found
        return Answer(200, _as_xml(json.loads(found.body), after).encode(), (("Content-Type", "application/xml"),))


def _as_xml(found: dict[str, Any], after: str) -> str:
    objects = "".join(
        f"<Contents><Key>{escape(each['name'])}</Key><LastModified>{each['updated']}</LastModified>"
        f"<ETag>{escape(each['etag'])}</ETag><Size>{each['size']}</Size></Contents>"
        for each in found.get("items", ())
        if each["name"] != after
    )
    folders = "".join(
        f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in found.get("prefixes", ())
    )
    token = found.get("nextPageToken")
    more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
    return f'<?xml version="1.0"?><ListBucketResult>{objects}{folders}{more}</ListBucketResult>'
