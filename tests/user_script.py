"""A user's script: every public name of raydense, used as documented. A test runs it, another one type-checks it.

python user_script.py FOLDER
"""

import json
import sys
from pathlib import Path

import raydense as rd


def main(folder: Path) -> None:
    data = rd.sample(rd.SampleSettings(passages=200, train_queries=40, dev_queries=8, test_queries=8, output=folder / "data"))
    corpus, queries, qrels = data.path / "corpus", data.path / "queries", data.path / "qrels"
    beir = rd.export(
        rd.ExportSettings(format="beir", corpus=corpus, queries=queries, qrels=qrels / "test", output=folder / "sets" / "sample")
    )
    hub = rd.export(rd.ExportSettings(format="huggingface", dataset=data, output=folder / "hub"))
    assert rd.import_corpus("huggingface", hub, folder / "again").rows == data.rows
    imported: rd.Artifact = rd.import_dataset(rd.ImportSettings(format="beir", input=beir, output=folder / "imported"))
    alone = rd.import_corpus("beir", beir, folder / "alone")
    assert alone.rows == len(rd.PassageStore(imported.path / "corpus")) == len(rd.PassageStore(corpus))
    chosen = rd.ImportSettings(
        format="sbert_negatives", input=beir, hidden=rd.HiddenSettings(share=0.3), hard_negatives=rd.HardNegatives(per_system=5), output=folder / "negatives",
    )  # fmt: skip
    assert chosen.hard_negatives
    assert chosen.hidden
    blocks = rd.split(rd.SplitSettings(corpus=corpus, unit="words", length=50, output=folder / "blocks"))

    asked = {"id": "a", "question": "who?", "answers": ["a red fox"], "documents": [{"paragraphs": ["the red fox", "not he"]}]}
    (folder / "asked.jsonl").write_text(json.dumps(asked))
    built = rd.construct(rd.ConstructSettings(input=folder / "asked.jsonl", length=0, output=folder / "built"))
    assert built.summary["splits"]["train"]["positive pairs"] == 1

    words = rd.index(rd.IndexSettings(kind="bm25", corpus=corpus, bm25=rd.BM25Settings(k1=1.2), output=folder / "words"))
    found = rd.search(rd.SearchSettings(index=words, queries=queries, k=20, output=folder / "found"))
    assert list(found.head(20)["rank"]) == list(range(1, 21))
    mined = rd.mine(rd.MineSettings(run=found, corpus=corpus, queries=queries, qrels=qrels / "train", negatives=2, output=folder / "mined"))

    small = {"batch_size": 8, "max_steps": 2, "model": "tiny", "corpus": str(corpus)}
    encoder = rd.pretrain(rd.PretrainSettings.read({"method": "mlm", "output": str(folder / "encoder"), **small}))
    retriever = rd.train(
        rd.TrainSettings(
            objective="retriever", model=str(encoder.path), corpus=str(corpus), queries=str(queries), examples=str(mined.path), batch_size=8,
            max_steps=2, dev=rd.DevSettings(qrels=qrels / "dev", every=1), engine=rd.EngineSettings(name="ddp"), output=folder / "retriever",
        )
    )  # fmt: skip
    query_vectors = rd.encode(rd.EncodeSettings(model=retriever, queries=queries, concurrency=(1, 1), output=folder / "asked-vectors"))
    by_topic = rd.topics(rd.TopicsSettings(embeddings=query_vectors, size=10, output=folder / "topics"))
    assert by_topic.summary["topics"] == 6
    near = rd.topics(rd.TopicsSettings(qrels=qrels / "train", queries=queries, corpus=corpus, size=10, output=folder / "near"))
    assert near.rows == by_topic.rows == 56
    of_train = {**small, "queries": str(queries), "examples": str(mined.path)}
    reranker = rd.train(rd.TrainSettings.read({"objective": "reranker", "output": str(folder / "reranker"), **of_train}))
    writer = rd.train(rd.TrainSettings.read({"objective": "generator", "output": str(folder / "writer"), **of_train}))
    vectors = rd.encode(rd.EncodeSettings(model=retriever, corpus=corpus, concurrency=(1, 1), output=folder / "vectors"))
    dense = rd.index(rd.IndexSettings(kind="faiss", embeddings=vectors, output=folder / "dense"))
    compared = rd.compare(rd.CompareSettings(embeddings=vectors, factories="Flat SQ8", k=5, output=folder / "compared"))
    assert compared.summary["result"]["runs"]["Flat"]["metrics"]["recall@5"] == 1
    by_vectors = rd.search(rd.SearchSettings(index=dense, model=retriever, queries=queries, k=20, output=folder / "by-vectors"))
    reranked = rd.rerank(
        rd.RerankSettings(
            model=reranker, run=by_vectors, corpus=corpus, queries=queries, depth=5, concurrency=(1, 1), output=folder / "reranked"
        )
    )
    labels = rd.label(
        rd.LabelSettings(
            model=reranker, run=found, corpus=corpus, queries=queries, qrels=qrels / "train", depth=5, s_neg=0.89, concurrency=(1, 1),
            output=folder / "labels",
        )
    )  # fmt: skip
    rd.mine(
        rd.MineSettings(
            run=found, corpus=corpus, queries=queries, qrels=qrels / "train", hybrid=rd.HybridSettings(labels=labels), negatives=2,
            output=folder / "hybrid",
        )
    )  # fmt: skip
    generated = rd.generate(
        rd.GenerateSettings(
            model=writer, corpus=corpus, queries_each=1, query_length=8, sampling=rd.SamplingSettings(top_k=5), concurrency=(1, 1),
            output=folder / "generated",
        )
    )  # fmt: skip
    nowhere = rd.EndpointSettings(url="http://127.0.0.1:1/v1", model="small", attempts=1)
    try:
        rd.generate(rd.GenerateSettings(endpoint=nowhere, corpus=corpus, output=folder / "asked"))
    except OSError as error:
        print(error)
    contexts = rd.expand(
        rd.ExpandSettings(
            queries=queries, qrels=qrels / "test", model=writer, kinds="answer", prompts=rd.PromptSettings(answer="answer: {query}"),
            length=8, concurrency=(1, 1), output=folder / "contexts",
        )
    )  # fmt: skip
    assert rd.Artifact.open(contexts.path / "queries" / "answer").rows == 8
    rd.oracle(rd.OracleSettings(corpus=corpus, queries=queries, qrels=qrels / "train", output=folder / "oracle"))
    noisy = rd.perturb(rd.PerturbSettings(queries=queries, kind="typo", rate=0.2, output=folder / "noisy"))
    assert noisy.rows == noisy.summary["queries"] == 56
    rd.filter(rd.FilterSettings(generated=generated, corpus=corpus, index=words, k=200, output=folder / "kept"))
    rd.mix(
        rd.MixSettings(
            examples=[f"mined={folder / 'hybrid'}", f"labelled={labels.path}"], queries=[queries], corpus=[corpus], weights=[1, 0.5], output=folder / "mixed",
        )
    )  # fmt: skip
    annotation = rd.annotate(
        rd.AnnotateSettings(
            run=[found, by_vectors], model=[reranker], corpus=corpus, queries=queries, qrels=qrels / "test", depth=5, keep=2,
            concurrency=(1, 1), output=folder / "annotation",
        )
    )  # fmt: skip
    rd.adjudicate(
        rd.AdjudicateSettings(
            annotation=annotation, qrels=qrels / "test", threshold=0.9, run=[f"words={found.path}"], output=folder / "adjudicated"
        )
    )
    rd.overlap(
        rd.OverlapSettings(
            queries=queries, train_qrels=qrels / "train", against=[qrels / "dev", f"test={qrels / 'test'}"], model=retriever, depth=3, threshold=0.999,
            concurrency=(1, 1), output=folder / "without-similar",
        )
    )  # fmt: skip
    fused = rd.fuse(rd.FuseSettings(run=[found, by_vectors], qrels=qrels / "dev", output=folder / "fused"))
    report = rd.evaluate(
        rd.EvaluateSettings(
            run=[by_vectors, f"reranked={reranked.path}", fused], qrels=qrels / "test", metrics="nDCG@10 R@20", queries=queries, corpus=corpus,
            answers=rd.AnswerSettings(match="token", k=[1, 5]), models=[retriever], similarity=rd.SimilaritySettings(query_sample=4),
            output=folder / "report",
        )
    )  # fmt: skip
    table = rd.evaluate_suite(rd.SuiteSettings(suite=folder / "sets", kind="bm25", output=folder / "suite"))
    assert set(table["runs"]) == {"BM25"}
    assert rd.RefreshSettings(every=0.5, unit="epochs").mode == "sync"
    errors = rd.analyse(
        rd.AnalyseSettings(
            run=found, corpus=corpus, queries=queries, qrels=qrels / "train", index=words, k=1, sample=10, output=folder / "errors"
        )
    )
    assert errors.rows == errors.summary["result"]["looked_at"] > 0
    measured: dict[str, object] = report.summary["result"]
    assert set(measured) >= {"runs", "significance"}, blocks.rows

    assert rd.MtebSearch(retriever, folder / "mteb", index={"factory": "SQfp16"}).fingerprint == retriever.fingerprint
    model = rd.DualEncoder.load(retriever.path)
    assert isinstance(rd.CrossEncoder.load(reranker.path), rd.CrossEncoder)
    assert isinstance(rd.Generator.load(writer.path), rd.Generator)
    query = rd.query_encoder(retriever.path)(["who?"])
    assert query.shape == (1, model.dimension)
    assert len(rd.pair_scorer(reranker.path)(["who?", "who?"], ["a red fox", "not he"])) == 2
    with rd.SearchPool.start(dense) as pool:
        scores, rows = pool.search(query, k=3)
    assert scores.shape == rows.shape == (1, 3)
    with rd.Retriever.load(index=[words, dense], model=retriever, corpus=corpus, fuse=None, reranker=reranker, rerank_depth=3) as asking:
        hits = asking.search("who?", k=5)
        assert [len(found) for found in asking.search(["who?", "when?"], k=2)] == [2, 2]
    with rd.Retriever(rd.RetrieverSettings(index=[words])) as bare:
        assert len(bare.search("who?", k=5)) <= 5
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert len({(hit.id, hit.title, hit.text, hit.score, *hit.found) for hit in hits}) == 5
    try:
        rd.EncodeSettings.read({"modle": "m"})
    except rd.InputError as error:
        print(error)


if __name__ == "__main__":
    with rd.one_line_errors("user_script"):
        main(Path(sys.argv[1]))
