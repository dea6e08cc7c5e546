"""The stage `index`: makes a sharded index from embeddings or a corpus."""

from __future__ import annotations

from raydense.retrieval.kind import kind_named
from raydense.retrieval.settings import IndexSettings
from raydense.retrieval.sharding import with_shards
from raydense.runtime.session import ensure_ray
from raydense.storage import Artifact, Draft, provenance, releases_outputs


@releases_outputs
def index(settings: IndexSettings) -> Artifact:
    """Make the index: one committed file (bm25: three) per shard; after a kill a second run resumes it.

    The artifact's summary holds kind, shards ([start, stop) rows of each), rows, corpus, and for faiss factory, dimension,
    model, where the index is exact the largest norm of a vector, and where it has inverted lists the nprobe that was chosen and its
    recall. Raises InputError on settings that FAISS or bm25s cannot follow, or on an index that these machines could not build or search.
    """
    settings = with_shards(settings)
    draft = Draft.open(settings.output, "index", provenance("index", settings))
    if draft.done:
        return draft.done
    ensure_ray()
    settings = settings.located()
    return kind_named(settings.kind).build(draft, settings)
