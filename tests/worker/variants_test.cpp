// Variants of a job, and experiments over them.
#include <cstring>
#include <map>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Variants : public Jobs {
 protected:
  static constexpr const char* kJob =
      "--model mlp --width 16 --depth 2 --stages 2 --microbatch 4 --microbatches 2 --threads 1 --seed 3 "
      "--print-every 1000 ";

  Json json(const std::string& name) {
    const Result<Json> read = parse_json(bytes(name), name);
    EXPECT_TRUE(read) << name << ": " << bytes(name);
    return read ? *read : Json();
  }
  /// The first line of a rank's log of steps.
  Json json_line(const std::string& folder, int rank) {
    const std::string log = bytes(folder + "/steps.rank" + std::to_string(rank) + ".jsonl");
    const Result<Json> read = parse_json(log.substr(0, log.find('\n')), folder);
    EXPECT_TRUE(read) << log;
    return read ? *read : Json();
  }
  static std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  }
  std::map<std::string, int> kinds(const std::string& name) {
    std::map<std::string, int> count;
    const Json trace = json(name);
    if (const Json* spans = trace.find("spans"))
      for (const Json& span : spans->items()) ++count[span.find("kind")->as_string()];
    return count;
  }
};

TEST_F(Variants, AJobInItsFourVariants) {
  ASSERT_EQ(run("data generate --workload clicks --out clicks --size 100kB --table-rows-cap 10").code, 0);
  const std::string job =
      "--model dlrm --table-rows-cap 10 --bottom 8,4 --top 8,1 --stages 2 --microbatch 8 --microbatches 2 "
      "--rule sgd --momentum 0 --threads 1 --seed 3 --print-every 1000 --steps 12 --checkpoint-every 6 "
      "--evaluate-every 6 ";
  const std::string data = "--data criteo:clicks ";
  const Ran original = run("train " + job + data + "--variant original --output-dir o");
  ASSERT_EQ(original.code, 0) << original.output;
  EXPECT_FALSE(fs::exists(folder_ / "o/trace.rank0.json"));
  const Ran instrumented = run("train " + job + data + "--variant instrumented --output-dir i");
  ASSERT_EQ(instrumented.code, 0) << instrumented.output;
  EXPECT_EQ(json("o/summary.json").find("losses")->dump(), json("i/summary.json").find("losses")->dump())
      << "to be watched changes nothing";
  for (const int rank : {0, 1}) {
    std::map<std::string, int> found = kinds("i/trace.rank" + std::to_string(rank) + ".json");
    for (const char* kind : {"data", "copy", "forward", "backward", "send", "wait", "update", "load",
                             "preprocess", "evaluation", "checkpoint"})
      EXPECT_GT(found[kind], 0) << kind << " of rank " << rank;
    EXPECT_EQ(found["backward"], 24) << "12 steps of 2 microbatches";
    EXPECT_EQ(found["evaluation"], 2);
    EXPECT_EQ(found["checkpoint"], 2);
    EXPECT_EQ(found["loss"] > 0, rank == 1) << "the last stage has it";
    EXPECT_EQ(found["loss"], rank == 1 ? found["forward"] : 0);
  }
  const Ran sleep = run("train " + job + data + "--variant sleep --variant-from i --output-dir s");
  ASSERT_EQ(sleep.code, 0) << sleep.output;
  EXPECT_NE(sleep.output.find("no losses (sleeping)"), std::string::npos) << sleep.output;
  EXPECT_EQ(kinds("s/trace.rank0.json")["backward"], 24);
  EXPECT_TRUE(fs::exists(folder_ / "s/checkpoints/latest")) << "checkpoints are real";
  const Json summary = json("s/summary.json");
  EXPECT_TRUE(summary.find("final_loss")->is_null());
  const Json* variant = summary.find("variant");
  ASSERT_TRUE(variant);
  EXPECT_GT(variant->find("drawn_s")->as_double(), 0);
  EXPECT_GE(variant->find("waited_s")->as_double(), variant->find("drawn_s")->as_double() * 0.99);
  const Ran generated = run("train " + job + data + "--variant generated --output-dir g");
  ASSERT_EQ(generated.code, 0) << generated.output;
  EXPECT_EQ(json("g/summary.json").find("data")->as_string().substr(0, 10), "synthetic:");
  EXPECT_GT(kinds("g/trace.rank0.json")["load"], 0);
  const Ran exported = run("trace convert i --to mllog --out i/export");
  ASSERT_EQ(exported.code, 0) << exported.output;
  const std::string mllog = bytes("i/export/run.mllog");
  for (const char* key :
       {"load_batch_mem", "load_batch_gpu", "model_forward_pass", "loss_tensor_calc", "model_backward_pass",
        "model_optim_step", "all_compute", "step_end", "batch_load", "batch_preproc", "eval_forward_pass",
        "eval_start", "checkpoint_stop", "epoch_start", "global_batch_size"})
    EXPECT_NE(mllog.find("\"key\":\"" + std::string(key) + "\""), std::string::npos) << key;
  EXPECT_NE(mllog.find("\"rank\":1,\"step_num\":11"), std::string::npos) << "every rank, every step";
  const auto of_first_step = [&](const std::string& key) {
    const std::string value = "\"key\":\"" + key + "\"", place = "\"rank\":0,\"step_num\":0}";
    std::size_t at = mllog.find(value);
    while (at != std::string::npos &&
           mllog.substr(at, mllog.find('\n', at) - at).find(place) == std::string::npos)
      at = mllog.find(value, at + 1);
    return at;
  };
  EXPECT_LT(of_first_step("all_compute"), of_first_step("step_end")) << "step_end ends the kit's warm-up";
}

/// The records are mapped: their `load` is the touching of their pages.
TEST_F(Variants, BertsRecordsHaveEveryPhase) {
  ASSERT_EQ(run("data generate --workload bert --out records/train --size 30kB --seed 1").code, 0);
  fs::copy(folder_ / "records/train", folder_ / "records/val");
  const Ran ran =
      run("train --model bert_base --layers 1 --hidden 16 --heads 2 --feed-forward 16 --length 512 --data "
          "records "
          "--stages 2 --microbatch 2 --microbatches 2 --rule lamb --lr 0.001 --threads 1 --steps 2 "
          "--evaluate-every 2 --checkpoint-at-end --variant instrumented --output-dir i");
  ASSERT_EQ(ran.code, 0) << ran.output;
  for (const int rank : {0, 1}) {
    const std::string file = "i/trace.rank" + std::to_string(rank) + ".json";
    std::map<std::string, int> found = kinds(file);
    for (const char* kind : {"data", "copy", "forward", "backward", "send", "wait", "update", "load",
                             "preprocess", "evaluation", "checkpoint"})
      EXPECT_GT(found[kind], 0) << kind << " of rank " << rank;
    EXPECT_EQ(found["loss"] > 0, rank == 1) << "the last stage has it";
    std::int64_t loading = 0;
    const Json trace = json(file);
    for (const Json& span : trace.find("spans")->items())
      if (span.find("kind")->as_string() == "load")
        loading += span.find("end")->as_int() - span.find("start")->as_int();
    EXPECT_GT(loading, 0);
  }
  const Ran exported = run("trace convert i --to mllog --out i/export");
  ASSERT_EQ(exported.code, 0) << exported.output;
  const std::string mllog = bytes("i/export/run.mllog");
  for (const char* key : {"batch_load", "batch_preproc", "load_batch_mem", "load_batch_gpu",
                          "model_forward_pass", "loss_tensor_calc", "model_backward_pass", "model_optim_step",
                          "all_compute", "step_end", "eval_start", "checkpoint_start"})
    EXPECT_NE(mllog.find("\"key\":\"" + std::string(key) + "\""), std::string::npos) << key;
}

TEST_F(Variants, CountersAreSampledByOneThreadOfEachProcess) {
  const auto lines = [&](const std::string& name) {
    std::vector<Json> all;
    for (const std::string& line : words_of(bytes(name), '\n'))
      if (const Result<Json> one = parse_json(line, name)) all.push_back(*one);
    return all;
  };
  ASSERT_EQ(run("data generate --workload clicks --out clicks --size 100kB --table-rows-cap 10").code, 0);
  write("job.yaml",
        "model: dlrm\ntable-rows-cap: 10\nbottom: 8,4\ntop: 8,1\nstages: 2\nmicrobatch: 8\nmicrobatches: "
        "2\nrule: "
        "sgd\nmomentum: 0\nthreads: 1\nsteps: 8\ndata: criteo:clicks\ncounters: 0.02\noutput-dir: out\n");
  const Ran launched = run("launch job.yaml");
  ASSERT_EQ(launched.code, 0) << launched.output;
  for (const int rank : {0, 1}) {
    const std::vector<Json> all = lines("out/counters.rank" + std::to_string(rank) + ".jsonl");
    ASSERT_GE(all.size(), 4u) << "a header, two samples, an end";
    const Json *first = &all[0], *sample = &all[1], *end = &all.back();
    EXPECT_EQ(first->find("ranks")->as_int(), 1) << "of the process";
    EXPECT_EQ(first->find("of_host")->as_bool(), rank == 0) << "one rank of a host counts for it";
    EXPECT_EQ(first->find("clock_offset_ns")->as_int(),
              json_line("out", rank).find("clock_offset_ns")->as_int());
    EXPECT_EQ(sample->find("cores") != nullptr, rank == 0);
    EXPECT_GT(sample->find("process")->find("resident_bytes")->as_int(), 0);
    for (const char* what : {"disks", "networks"})  // some containers have no such files
      EXPECT_EQ(sample->find(what) != nullptr, rank == 0 && !end->find("missing")->find(what)) << what;
    EXPECT_GE(end->find("samples")->as_int(), 2);
    bool has_cache = false;
    for (const Json& line : all) {
      const Json* when = line.find("cache");
      has_cache |= when && when->as_string() == "end" && line.find("files")->as_int() > 0;
    }
    EXPECT_EQ(has_cache, rank == 0);
    EXPECT_EQ(json_line("out", rank).find("clock_round_trip_ns")->as_int(), 0) << "one host has one clock";
  }
  const Ran report = run("report --run out");
  ASSERT_EQ(report.code, 0) << report.output;
  for (const char* part : {"Bytes from disk and from the cache", "The data set in the page cache"})
    EXPECT_NE(bytes("out/report.html").find(part), std::string::npos) << part;
  // Ranks that are threads have one process; a variant counts without being asked.
  const std::string job = std::string(kJob) + "--steps 2 --data synthetic:64 ";
  ASSERT_EQ(run("train " + job + "--variant instrumented --output-dir i").code, 0);
  EXPECT_EQ(lines("i/counters.rank0.jsonl").front().find("ranks")->as_int(), 2);
  EXPECT_FALSE(fs::exists(folder_ / "i/counters.rank1.jsonl"));
  ASSERT_EQ(run("train " + job + "--variant instrumented --counters 0 --overwrite --output-dir i").code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "i/counters.rank0.jsonl")) << "of the run before";
  ASSERT_EQ(run("train " + job + "--output-dir plain").code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "plain/counters.rank0.jsonl"));
}

TEST_F(Variants, WhatMakesNoSenseIsRefused) {
  const std::string job = std::string(kJob) + "--steps 2 --data synthetic:64 ";
  ASSERT_EQ(run("train " + job + "--variant instrumented --output-dir i").code, 0);
  for (const auto& [arguments, part] :
       {std::pair<std::string, std::string>{"--variant instrumented", "--output-dir"},
        {"--counters 1", "--output-dir"},
        {"--counters 0.001 --output-dir x", "for example 1"},
        {"--variant-from i", "--variant sleep or generated"},
        {"--variant generated --output-dir x", "generated already"},
        {"--variant sleep --output-dir x", "give --variant-from DIR"},
        {"--variant sleep --variant-from absent --output-dir x", "is no finished run"},
        {"--variant sleep --variant-from i --output-dir x --save-weights w.safetensors",
         "computes no values"},
        {"--variant sleep --variant-from i --output-dir x --stages 1", "other layers"},
        {"--variant sleep --variant-from i --output-dir x --fused --lr 0.1 0.2", "this run has 2 in 1"},
        {"--variant instrumented --output-dir x --variant-beyond", "without --variant sleep"},
        {"--variant sleep --variant-from i --output-dir x --microbatch 2", "outside of what was measured"}}) {
    const std::string flags = arguments.find("--stages") != std::string::npos
                                  ? "--model mlp --width 16 --depth 2 --microbatch 4 --steps 2 "
                              : arguments.find("--microbatch") != std::string::npos
                                  ? "--model mlp --width 16 --depth 2 --stages 2 --steps 2 "
                                  : job;
    const Ran ran = run("train " + flags + arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(part), std::string::npos) << arguments << "\n" << ran.output;
  }
}

TEST_F(Variants, ATableOfMeasuredRunsStandsForWhatLiesBetween) {
  const std::string job =
      "--model mlp --width 16 --depth 2 --microbatches 2 --threads 1 --seed 3 --print-every 1000 --steps 6 "
      "--data synthetic:64 --no-evaluation ";
  for (const char* microbatch : {"2", "6"})
    ASSERT_EQ(run("train " + job + "--variant instrumented --microbatch " + microbatch + " --output-dir i" +
                  microbatch)
                  .code,
              0);
  const Ran between =
      run("train " + job + "--variant sleep --variant-from i2,i6 --microbatch 3 --output-dir s3");
  ASSERT_EQ(between.code, 0) << between.output;
  const Json s3 = json("s3/summary.json");
  EXPECT_EQ(s3.find("variant")->find("times")->as_string(), "0.75 of i2, 0.25 of i6");
  EXPECT_GT(s3.find("variant")->find("drawn_s")->as_double(), 0);
  const std::string more =
      "train " + job + "--variant sleep --variant-from i2,i6 --microbatch 8 --output-dir s8 ";
  const Ran outside = run(more);
  EXPECT_EQ(outside.code, 2) << outside.output;
  EXPECT_NE(outside.output.find("1 rank(s) with 2, 1 rank(s) with 6"), std::string::npos) << outside.output;
  EXPECT_NE(outside.output.find("--variant-beyond"), std::string::npos) << outside.output;
  const Ran beyond = run(more + "--variant-beyond");
  ASSERT_EQ(beyond.code, 0) << beyond.output;
  EXPECT_EQ(json("s8/summary.json").find("variant")->find("times")->as_string(),
            "i6, forwards and backwards times 1.33");
  // Another number of replicas is another place of the table.
  const std::string two =
      "train " + job + "--variant sleep --variant-from i2 --microbatch 2 --replicas 2 --output-dir r2 ";
  const Ran replicas = run(two);
  EXPECT_EQ(replicas.code, 2) << replicas.output;
  EXPECT_NE(replicas.output.find("a run of 2 rank(s)"), std::string::npos) << replicas.output;
  const Ran as_one = run(two + "--variant-beyond");
  EXPECT_EQ(as_one.code, 0) << as_one.output;
  EXPECT_GT(kinds("r2/trace.rank1.json")["reduce"], 0) << "messages of replicas are real";
}

/// An LSTM goes on from the state of the batch before. A sleeping one has states of the same size, and saves
/// and takes up checkpoints with them.
TEST_F(Variants, LanguageModelsThatCarryStatesSleepToo) {
  const std::string job =
      "train --model awd_lstm --embedding-features 8 --hidden 12 --vocabulary 16 --length 5 --microbatch 2 "
      "--microbatches 2 --stages 2 --data synthetic:64 --rule asgd --nonmonotone 1 --threads 1 --seed 3 "
      "--print-every "
      "1000 --checkpoint-every 4 --evaluate-every 4 --steps 8 ";
  const Ran real = run(job + "--variant instrumented --output-dir i");
  ASSERT_EQ(real.code, 0) << real.output;
  const std::string sleeping = job + "--variant sleep --variant-from i --output-dir s ";
  const Ran slept = run(sleeping);
  ASSERT_EQ(slept.code, 0) << slept.output;
  EXPECT_NE(slept.output.find("no losses (sleeping)"), std::string::npos) << slept.output;
  for (const int rank : {0, 1}) {
    const std::string file = "/trace.rank" + std::to_string(rank) + ".json";
    std::map<std::string, int> were = kinds("i" + file), are = kinds("s" + file);
    for (const char* kind : {"data", "copy", "forward", "loss", "backward", "update", "send", "wait",
                             "evaluation", "checkpoint"})
      EXPECT_EQ(are[kind], were[kind]) << kind << " of rank " << rank;
    const std::string part = "/checkpoints/step-00000008/stage" + std::to_string(rank) + ".safetensors";
    EXPECT_GT(count(bytes("i" + part), "\"carried/"), 0u) << part;
    EXPECT_EQ(count(bytes("s" + part), "\"carried/"), count(bytes("i" + part), "\"carried/")) << part;
  }
  const Ran goes_on =
      run(job + "--variant sleep --variant-from i --output-dir t --resume s/checkpoints/step-00000004");
  EXPECT_EQ(goes_on.code, 0) << goes_on.output;
}

TEST_F(Variants, ArraysTurnsAndSharedStateSleepToo) {
  const std::string mlp = "--model mlp --width 16 --depth 2 --microbatch 4 --data synthetic:64 --rule adam ",
                    gan =
                        "--model dcgan --image-size 16 --latent 8 --generator-features 4 "
                        "--discriminator-features 4 --microbatch 2 --data synthetic:16 --rule adam ",
                    common = "--microbatches 4 --threads 1 --steps 3 --no-evaluation ";
  for (const auto& [name, job] :
       {std::pair<std::string, std::string>{"array", mlp + "--fused --lr 0.1 0.2 --arrays 1 --stages 2 "},
        {"arrays", mlp + "--fused --lr 0.1 0.2 --arrays 2 --stages 2 "},
        {"turns", gan + "--stages 2 "},
        {"shared", mlp + "--replicas 2 --zero-1 --checkpoint-at-end "}}) {
    const std::string words = "train " + job + common;
    const Ran real = run(words + "--variant instrumented --output-dir i-" + name);
    ASSERT_EQ(real.code, 0) << name << real.output;
    const Ran slept = run(words + "--variant sleep --variant-from i-" + name + " --output-dir s-" + name);
    ASSERT_EQ(slept.code, 0) << name << slept.output;
    for (const int rank : {0, 1}) {
      const std::string file = "/trace.rank" + std::to_string(rank) + ".json";
      std::map<std::string, int> were = kinds("i-" + name + file), are = kinds("s-" + name + file);
      for (const char* kind : {"forward", "backward", "update", "send"})
        EXPECT_EQ(are[kind], were[kind]) << name << " " << kind;
    }
    const Json summary = json("s-" + name + "/summary.json");
    EXPECT_GT(summary.find("variant")->find("drawn_s")->as_double(), 0) << name;
    EXPECT_TRUE(summary.find("final_loss")->is_null()) << name;
    const Json* jobs = summary.find("jobs");
    EXPECT_EQ(jobs != nullptr, name.starts_with("array")) << name;
    for (std::size_t job = 0; jobs && job < 2; ++job) {
      EXPECT_TRUE(jobs->items().at(job).find("loss")->is_null()) << name;
      EXPECT_NE(slept.output.find("job " + std::to_string(job) + ": lr=0." + std::to_string(job + 1) +
                                  " no losses"),
                std::string::npos)
          << slept.output;
    }
  }
}

class Experiments : public Variants {
 protected:
  static constexpr const char* kGrid =
      "name: tiny\nvariants: [instrumented, sleep]\nworkloads:\n"
      "  - {name: m, job: {model: mlp, width: 16, depth: 2, steps: 12, data: 'synthetic:64', threads: 1},\n"
      "     ranks: [1], batch: [4]}\n"
      "  - {name: wrong, job: {model: mlp, width: 16, depth: 2, steps: 12, threads: 1,\n"
      "     env: {MILLRACE_FAILPOINTS: 'update:rank=0:step=2:action=nan'}}, ranks: "
      "[1],\n"
      "     batch: [4], data: ['synthetic:64']}\n";
};

TEST_F(Experiments, AGridThatWasKilledGoesOnAndAFailedCellEndsNobody) {
  write("grid.yaml", kGrid);
  const Ran dry = run("experiment grid.yaml --dry-run --output-dir out");
  ASSERT_EQ(dry.code, 0) << dry.output;
  EXPECT_EQ(count(dry.output, "cells/"), 4u) << dry.output;
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  // Killed when the first cell is on record.
  ASSERT_EQ(
      std::system(("cd " + folder_.string() +
                   " && { " MILLRACE_BIN_DIR
                   "/millrace experiment grid.yaml --output-dir out >first.log 2>&1 & p=$!; "
                   "for i in $(seq 600); do [ \"$(grep -c cells/ out/journal.jsonl 2>/dev/null)\" -ge 2 ] "
                   "2>/dev/null && break; sleep 0.05; done; kill -9 $p; wait $p; true; }")
                      .c_str()),
      0);
  const std::string before = bytes("out/journal.jsonl");
  const std::size_t done = count(before, "\"key\":\"cells/");
  ASSERT_GE(done, 1u) << bytes("first.log");
  ASSERT_LT(done, 4u) << "it was killed on its way";
  const auto first = fs::last_write_time(folder_ / "out/cells/m-own-r1-b4-warm-instrumented-1/summary.json");
  const Ran second = run("experiment grid.yaml --output-dir out");
  EXPECT_EQ(second.code, 1) << second.output;
  EXPECT_NE(second.output.find("2 cells failed"), std::string::npos) << second.output;
  EXPECT_NE(second.output.find("its instrumented run"), std::string::npos) << second.output;
  EXPECT_EQ(fs::last_write_time(folder_ / "out/cells/m-own-r1-b4-warm-instrumented-1/summary.json"), first)
      << "a finished cell is not run again";
  EXPECT_TRUE(bytes("out/journal.jsonl").starts_with(before));
  EXPECT_EQ(count(bytes("out/journal.jsonl"), "\"key\":\"cells/"), 4u);
  const std::string cells = bytes("out/cells.csv");
  EXPECT_EQ(count(cells, "\n"), 5u) << cells;
  EXPECT_NE(bytes("out/comparisons.csv").find("sleep,instrumented,compute"), std::string::npos);
  EXPECT_NE(bytes("out/phases.csv").find("preprocess"), std::string::npos);
  EXPECT_NE(bytes("out/report.html").find("Where a step"), std::string::npos);
  for (const char* file : {"launch-manifest.json", "job.yaml", "summary.json", "trace.rank0.json"})
    EXPECT_TRUE(fs::exists(folder_ / "out/cells/m-own-r1-b4-warm-sleep-1" / file)) << file;
}

TEST_F(Experiments, CapturedRunsAreComparedWithDlioToo) {
  write(
      "grid.yaml",
      "name: calls\nvariants: [original, instrumented]\ncaptured: 1\nworkloads:\n"
      "  - {name: d, ranks: [1], batch: [8],\n"
      "     data: [{name: clicks, path: 'criteo:{}', generate: {workload: clicks, size: 64kB, "
      "table_rows_cap: 10}}],\n"
      "     job: {model: dlrm, table_rows_cap: 10, bottom: '8,4', top: '8,1', rule: sgd, momentum: 0, steps: "
      "4, threads: 1, no_evaluation: true}}\n");
  const Ran ran = run("experiment grid.yaml --output-dir out");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("file calls of dlio beside the original's"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("instrumented beside original: run "), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.find(" % ("), std::string::npos) << "one repeat has no range\n" << ran.output;
  const std::string calls = bytes("out/calls.csv"), alike = bytes("out/similarity.csv");
  for (const char* variant : {",original,1,", ",instrumented,1,", ",dlio,1,"}) {
    const std::size_t at = calls.find(variant);
    ASSERT_NE(at, std::string::npos) << calls;
    EXPECT_GT(std::stoi(calls.substr(at + std::strlen(variant))), 0) << "reads of the data: " << calls;
  }
  EXPECT_NE(alike.find(",dlio,"), std::string::npos) << alike;
  EXPECT_NE(bytes("out/report.html").find("how alike they are"), std::string::npos);
  EXPECT_EQ(run("experiment grid.yaml --output-dir out").code, 0) << "nothing is run again";
  EXPECT_EQ(count(bytes("out/journal.jsonl"), "\"key\":\"captured/"), 3u);
}

TEST_F(Experiments, AGridThatIsWrongSaysWhere) {
  for (const auto& [text, part] :
       {std::pair<std::string, std::string>{"workload: []\n", "workload"},
        {"workloads: []\n", "workloads is empty"},
        {"workloads: [{job: {model: mpl}}]\n", "mpl"},
        {"workloads: [{job: {model: mlp}, batches: [1]}]\n", "did you mean 'batch'"},
        {"variants: [sleep]\nworkloads: [{job: {model: mlp}}]\n", "add instrumented"},
        {"cache: [hot]\nworkloads: [{job: {model: mlp}}]\n", "hot"},
        {"workloads: [{job: {model: mlp}, data: ['kits:{}', {path: 'kits:{}'}]}]\n", "nothing generates"}}) {
    write("grid.yaml", text);
    const Ran ran = run("experiment grid.yaml --output-dir out");
    EXPECT_EQ(ran.code, 2) << text << ran.output;
    EXPECT_NE(ran.output.find(part), std::string::npos) << text << ran.output;
  }
}

}  // namespace
}  // namespace millrace
