// Makes a score from raw text with the program alone. Text becomes tokens, a pipeline learns them by heart,
// and checkpoints are translated and scored.
#include "tests/worker/job_fixture.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <vector>

#include "runtime/base/json.h"

namespace millrace {
namespace {

class Translate : public Jobs {
 protected:
  static constexpr int kPairs = 32;

  void SetUp() override {
    Jobs::SetUp();
    const char* const nouns[] = {"Hund", "Mann", "Baum", "Vogel"};
    const char* const names[] = {"dog", "man", "tree", "bird"};
    std::string de, en;
    for (int i = 0; i < kPairs; ++i) {
      const int a = i % 4, b = i / 4 % 4;
      de += std::string("Der ") + nouns[a] + (i < 16 ? ", der den " : " sieht den ") + nouns[b] + " sucht.\n";
      en += std::string("The ") + names[a] + (i < 16 ? "'s " : " - a ") + names[b] + " (" + names[a] + ")!\n";
    }
    write("text.de", de);
    write("text.en", en);
    const std::string rules = " --joiners -c bpe -v vocab";
    ok("data text learn-bpe text.de text.en --joiners --merges 40 -o bpe");
    ok("data text vocab text.de text.en --joiners -c bpe -o vocab");
    fs::create_directory(folder_ / "data");
    ok("data text encode text.de text.en" + rules + " -o data/train.de.tokens -o data/train.en.tokens");
  }

  /// Runs and expects success; the output.
  std::string ok(const std::string& arguments) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.output;
    return ran.output;
  }
  std::string vocabulary_size() {
    const std::string text = ok("data text check data/train.de.tokens -v vocab");
    const std::string before = "vocabulary of ";
    const std::size_t at = text.find(before) + before.size();
    return text.substr(at, text.find(' ', at) - at);
  }
  /// Two ranks on the text; checkpoints in run/, weights in w.safetensors.
  void train(int steps) {
    ok("train --model gnmt --layers 2 --hidden 32 --dropout 0 --label-smoothing 0 --vocabulary " +
       vocabulary_size() +
       " --stages 2 --microbatches 2 --microbatch 8 --data data:de-en --rule adam --lr 1e-2 --clip-norm 1 "
       "--steps " +
       std::to_string(steps) +
       " --checkpoint-every 100 --checkpoint-at-end --keep-checkpoints 0 --output-dir run "
       "--save-weights w.safetensors");
  }
  static inline const std::string kFlags = " --joiners -c bpe -v vocab ";
};

TEST_F(Translate, APipelineLearnsPairsByHeart) {
  train(400);
  ok("translate --checkpoint run --input text.de -o text.hyp" + kFlags);
  const double bleu = std::atof(ok("bleu text.hyp text.en -b").c_str());
  EXPECT_GT(bleu, 95) << bytes("text.hyp");
  // Weights in one file, a single thread and output to stdout all give the same bytes.
  ok("translate --checkpoint w.safetensors --input text.de -o other.hyp --threads 1" + kFlags);
  EXPECT_EQ(bytes("other.hyp"), bytes("text.hyp"));
  ok("translate --checkpoint run/checkpoints" + kFlags + "<text.de >piped.hyp 2>notes && true");
  EXPECT_EQ(bytes("piped.hyp"), bytes("text.hyp"));

  const std::string table =
      ok("bleu --run run --input text.de text.en --translate='" + kFlags + " --beam 2'");
  for (const char* step : {"100 ", "200 ", "300 ", "400 "})
    EXPECT_NE(table.find(step), std::string::npos) << table;
  EXPECT_NE(bytes("run/bleu.json").find("\"epochs\": 200"), std::string::npos) << bytes("run/bleu.json");
  ok("report --run run");
  EXPECT_NE(bytes("run/report.html").find("hours of training"), std::string::npos);
}

/// A safetensors file with each tensor under other names.
std::string with_names(const std::string& file,
                       const std::function<std::vector<std::string>(const std::string&)>& names) {
  std::uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  const auto header = parse_json(file.substr(sizeof size, size), "header");
  Json renamed = Json::object();
  std::string values;
  for (const auto& [name, tensor] : header->members()) {
    if (name == "__metadata__") continue;
    const Json& place = *tensor.find("data_offsets");
    const auto begin = static_cast<std::size_t>(place.items()[0].as_int()),
               end = static_cast<std::size_t>(place.items()[1].as_int());
    for (const std::string& other : names(name)) {
      const auto at = static_cast<std::int64_t>(values.size());
      values += file.substr(sizeof size + size + begin, end - begin);
      Json offsets = Json::array();
      offsets.push_back(at);
      offsets.push_back(static_cast<std::int64_t>(values.size()));
      renamed.append_member(other, Json::object({{"dtype", *tensor.find("dtype")},
                                                 {"shape", *tensor.find("shape")},
                                                 {"data_offsets", offsets}}));
    }
  }
  std::string text = renamed.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + values;
}

/// EmuBidirLSTM's state_dict has its LSTM of two directions, once more as two of one, or both.
TEST_F(Translate, WeightsByPipeDreamsNamesAreRead) {
  train(2);
  ok("translate --checkpoint w.safetensors --input text.de -o text.hyp" + kFlags);
  const std::string start = "train --model gnmt --layers 2 --hidden 32 --label-smoothing 0 --vocabulary " +
                            vocabulary_size() + " --data data:de-en --no-evaluation --seed 9 --steps 0 " +
                            "--save-weights again --init-from ";
  const std::string first = "encoder.rnn_layers.0.";
  const auto named = [&](const std::string& wrapper, bool both, bool single) {
    return with_names(bytes("w.safetensors"), [&](const std::string& name) {
      std::vector<std::string> names;
      if (!name.starts_with(first)) return std::vector{wrapper + name};
      const std::string own = name.substr(first.size()), ours = "_reverse";
      const bool reverse = own.ends_with(ours);
      if (both) names.push_back(wrapper + first + "bidir." + own);
      if (single)
        names.push_back(wrapper + first + (reverse ? "layer2." : "layer1.") +
                        (reverse ? own.substr(0, own.size() - ours.size()) : own));
      return names;
    });
  };
  for (const auto& [wrapper, both, single] : {std::tuple("", true, true),
                                              {"", true, false},
                                              {"", false, true},
                                              {"module.", true, true},
                                              {"module.module.", false, true}}) {
    write("p.safetensors", named(wrapper, both, single));
    ok("translate --checkpoint p.safetensors --overwrite --input text.de -o p.hyp" + kFlags);
    EXPECT_EQ(bytes("p.hyp"), bytes("text.hyp")) << wrapper << both << single;
    ok(start + "p.safetensors");
    EXPECT_TRUE(bytes("again") == bytes("w.safetensors")) << wrapper << both << single;
    fs::remove(folder_ / "again");
  }
  ok("translate --checkpoint p.safetensors --stages 2 --overwrite --input text.de -o p.hyp" + kFlags);
  EXPECT_EQ(bytes("p.hyp"), bytes("text.hyp"));

  // Two names of one weight, and the values of neither can be chosen.
  std::string other = named("", true, true);
  std::uint64_t size = 0;
  std::memcpy(&size, other.data(), sizeof size);
  const auto header = parse_json(other.substr(sizeof size, size), "header");
  const std::string name = first + "layer2.bias_hh_l0";
  const Json* const tensor = header->find(name);
  ASSERT_TRUE(tensor);
  other[sizeof size + size + static_cast<std::size_t>(tensor->find("data_offsets")->items()[0].as_int())] ^=
      1;
  write("p.safetensors", other);
  for (const std::string& command :
       {"translate --checkpoint p.safetensors --overwrite --input text.de -o p.hyp" + kFlags,
        start + "p.safetensors"}) {
    const Ran ran = run(command);
    EXPECT_EQ(ran.code, 4) << ran.output;
    EXPECT_NE(ran.output.find(first + "bidir.bias_hh_l0_reverse and " + name + " are names of one weight"),
              std::string::npos)
        << ran.output;
  }
  const Ran left_out = run(start + "p.safetensors --init-from-ignore '*.layer2.*'");
  EXPECT_EQ(left_out.code, 0) << left_out.output;
  EXPECT_TRUE(bytes("again") == bytes("w.safetensors"));
}

/// The values of a key in lines of JSON, as they are written.
std::vector<std::string> values_of(const std::string& log, const std::string& key) {
  std::vector<std::string> values;
  const std::string before = "\"" + key + "\":";
  for (std::size_t at = 0; (at = log.find(before, at)) != std::string::npos;) {
    at += before.size();
    values.push_back(log.substr(at, log.find_first_of(",}", at) - at));
  }
  return values;
}

TEST_F(Translate, ATrainingRunScoresWhatItsCheckpointsTranslate) {
  const std::string common =
      "train --model gnmt --layers 2 --hidden 32 --label-smoothing 0 --vocabulary " + vocabulary_size() +
      " --microbatch 4 --data data:de-en --rule adam --lr 1e-2 --epochs 80 --checkpoint-every 40 "
      "--keep-checkpoints 0 --trace-steps 0 ";
  const std::string flags = "--joiners -c bpe -v vocab --beam 3 --batch 5";
  const std::string bleu =
      " --bleu-every 20 --bleu-source text.de --bleu-reference text.en --bleu-translate='" + flags + "'";
  struct Case {
    const char *name, *plan, *loss_rank;
    std::vector<int> scored;  // steps
  };
  const Case cases[] = {
      {"one", "--microbatches 4", "0", {40, 80, 120, 160}},
      {"two", "--microbatches 4 --stages 2 --clip-norm 1 --ema 0.9", "1", {40, 80, 120, 160}},
      {"replicas", "--microbatches 4 --stages 2 --replicas 2,1", "2", {40, 80, 120, 160}},
      {"pipedream", "--stages 3 --schedule pipedream", "2", {160, 320, 480, 640}}};
  for (const Case& c : cases) {
    const std::string out = c.name, log = out + "/steps.rank" + c.loss_rank + ".jsonl";
    const std::string text = ok(common + c.plan + bleu + " --output-dir " + out);
    EXPECT_NE(text.find("BLEU "), std::string::npos) << text;
    const std::vector<std::string> scores = values_of(bytes(log), "bleu");
    ASSERT_EQ(scores.size(), c.scored.size()) << bytes(log);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const std::string step = std::to_string(c.scored[i]);
      const std::string padded = std::string(8 - step.size(), '0') + step;
      ok("translate --checkpoint " + out + "/checkpoints/step-" + padded +
         " --input text.de -o hyp --overwrite " + flags);
      EXPECT_EQ(bytes(out + "/bleu/step-" + step), bytes("hyp")) << out << " step " << step;
      EXPECT_NEAR(std::atof(scores[i].c_str()), std::atof(ok("bleu hyp text.en -b -w 8").c_str()), 1e-7);
      EXPECT_NE(bytes(out + "/summary.json").find("\"bleu\": " + scores[i]), std::string::npos);
    }
    EXPECT_GT(std::atof(scores.back().c_str()), std::atof(scores.front().c_str())) << bytes(log);
    // Scoring changes nothing of the run.
    ok(common + c.plan + " --output-dir plain --overwrite");
    EXPECT_EQ(values_of(bytes(log), "loss"),
              values_of(bytes("plain/steps.rank" + std::string(c.loss_rank) + ".jsonl"), "loss"));
  }
  ok("report --run two");
  EXPECT_NE(bytes("two/report.html").find("while it trained"), std::string::npos);

  const std::string reached =
      ok(common + cases[1].plan + bleu + " --target-bleu 0.01 --checkpoint-at-end --output-dir reached");
  EXPECT_NE(reached.find("the target is reached"), std::string::npos) << reached;
  EXPECT_EQ(values_of(bytes("reached/steps.rank1.jsonl"), "bleu").size() * 40,
            values_of(bytes("reached/steps.rank1.jsonl"), "step").size());
  EXPECT_LT(values_of(bytes("reached/steps.rank1.jsonl"), "step").size(), 160u);
}

/// GNMT-16 by name: the translator reads the layers from the weights.
TEST_F(Translate, TheLargeModelIsScoredToo) {
  const std::string text =
      ok("train --model gnmt_large --layers 3 --hidden 16 --vocabulary " + vocabulary_size() +
         " --microbatch 4 --data data:de-en --bleu-every 1 --bleu-source text.de --bleu-reference "
         "text.en --bleu-translate='--joiners -c bpe -v vocab --beam 2' --epochs 1 --output-dir large");
  EXPECT_NE(text.find("BLEU "), std::string::npos) << text;
}

TEST_F(Translate, WhatIsWrongWithScoresIsSaidBeforeTheFirstStep) {
  write("short.en", "The dog\n");
  write("small", "Der\n");
  const std::string train = "train --model gnmt --layers 2 --hidden 16 --vocabulary " + vocabulary_size() +
                            " --data data:de-en --epochs 1 --output-dir out ";
  const auto fails = [&](const std::string& arguments, int code, const std::string& what) {
    const Ran ran = run(train + arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(what), std::string::npos) << what << " not in\n" << ran.output;
    EXPECT_FALSE(fs::exists(folder_ / "out/steps.rank0.jsonl"));
  };
  const std::string texts = "--bleu-every 1 --bleu-source text.de --bleu-reference text.en ";
  fails("--bleu-every 1", 2, "--bleu-source: is required");
  fails("--bleu-source text.de", 2, "says nothing without --bleu-every");
  fails(texts + "--bleu-translate='--joiners -c bpe -v none'", 3, "none");
  fails(texts + "--bleu-translate='--joiners -c bpe -v vocab --ranks 2'", 2, "--ranks: does not go with");
  fails(texts + "--bleu-translate='-v small'", 3, "is not the vocabulary that this run was trained with");
  fails("--bleu-every 1 --bleu-source text.de --bleu-reference short.en --bleu-translate='-v vocab'", 3,
        "short.en: has 1 lines, text.de 32");
  fails(texts + "--bleu-translate='-v vocab' --target-bleu 3 --stages 2 --schedule pipedream", 2,
        "a target score ends a run whose schedule flushes");
  EXPECT_EQ(run("train --model mlp " + texts + "--bleu-translate='-v vocab'").code, 2);
}

/// Asked to stop, or robbed of a rank, in the middle of a long translation: all ranks end, and soon.
TEST_F(Translate, AStopAndALostRankAreHeardWhileItTranslates) {
  std::string de = bytes("text.de"), en = bytes("text.en"), all_de, all_en;
  for (int i = 0; i < 400; ++i) all_de += de, all_en += en;
  write("long.de", all_de);
  write("long.en", all_en);
  write("job.yaml", "model: gnmt\nlayers: 2\nhidden: 64\nvocabulary: " + vocabulary_size() +
                        "\nranks: 2\nstages: 2\nmicrobatches: 4\nmicrobatch: 8\ndata: data:de-en\nepochs: "
                        "2\ntimeout: 5\nbleu-every: 1\nbleu-source: long.de\nbleu-reference: long.en\n"
                        "bleu-translate: \"--joiners -c bpe -v vocab --batch 2\"\n");
  const std::string wait =
      "for i in $(seq 600); do grep -q translating OUT/status.rank0.json 2>/dev/null && break; sleep 0.1; "
      "done; ";
  const auto during = [&](const std::string& out, const std::string& what) {
    const std::string script = "cd " + folder_.string() +
                               "; " MILLRACE_BIN_DIR
                               "/millrace launch job.yaml --set output-dir=OUT >OUT.log 2>&1 & job=$!; " +
                               wait + what + "; wait $job";
    std::string text = script;
    for (std::size_t at; (at = text.find("OUT")) != std::string::npos;) text.replace(at, 3, out);
    const int status = std::system(("bash -c '" + text + "'").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(during("stopped", "kill -TERM $job"), 75) << bytes("stopped.log");
  EXPECT_NE(bytes("stopped.log").find("was interrupted"), std::string::npos) << bytes("stopped.log");
  EXPECT_TRUE(fs::exists(folder_ / "stopped/checkpoints/latest"));
  EXPECT_EQ(values_of(bytes("stopped/steps.rank1.jsonl"), "bleu").size(), 0u);
  EXPECT_EQ(during("robbed", "kill -KILL $(pgrep -P $job | tail -1)"), 137) << bytes("robbed.log");
}

TEST_F(Translate, RanksAndThreadsShareTheSentences) {
  train(60);
  // More than a window of 128 batches.
  std::string odd = "\n\n";
  for (int i = 0; i < 13; ++i) odd += bytes("text.de");
  write("odd.de", odd + "Hund Hund\n");
  ok("translate --checkpoint run --input odd.de -o one --batch 3 --threads 1" + kFlags);
  for (const char* shared : {"--threads 3", "--ranks 2", "--ranks 3 --threads 2", "--ranks 8"}) {
    const std::string text = ok("translate --checkpoint run --input odd.de -o hyp --overwrite --batch 3 " +
                                std::string(shared) + kFlags);
    EXPECT_EQ(bytes("hyp"), bytes("one")) << shared;
    EXPECT_NE(text.find("419 sentences"), std::string::npos) << text;
    EXPECT_EQ(text.find("419 sentences"), text.rfind("419 sentences")) << text;
  }
  ok("translate --checkpoint run --input odd.de --n-best 2 -o best --threads 1" + kFlags);
  ok("translate --checkpoint run --input odd.de --n-best 2 -o shared --ranks 2" + kFlags);
  EXPECT_EQ(bytes("shared"), bytes("best"));
  EXPECT_EQ(run("translate --checkpoint run --ranks 2 <odd.de" + kFlags).code, 2);
  EXPECT_EQ(run("translate --checkpoint nowhere --input odd.de -o none --ranks 2" + kFlags).code, 4);
  write("bad.de", "gut\nnicht \xFF gut\n");
  const Ran bad = run("translate --checkpoint run --input bad.de -o none --ranks 2" + kFlags);
  EXPECT_EQ(bad.code, 3) << bad.output;
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_FALSE(entry.path().filename().string().starts_with("none")) << entry.path();
}

TEST_F(Translate, StagesHoldTheModelTogether) {
  train(60);
  std::string odd = "\n\n";
  for (int i = 0; i < 13; ++i) odd += bytes("text.de");
  write("odd.de", odd + "Hund Hund\n");
  write("one.de", "Der Hund sucht.");
  write("none.de", "");
  const auto translated = [&](const std::string& input, const std::string& flags, const std::string& ranks) {
    ok("translate --checkpoint run --input " + input + " -o hyp --overwrite " + flags + ranks + kFlags);
    return bytes("hyp");
  };
  struct Case {
    const char* flags;
    std::vector<const char*> ranks;
  };
  // More than a window of 128 batches, greedy, both presets, a cut search, n-best.
  const Case cases[] = {
      {"--batch 3 ",
       {"--stages 2", "--stages 3 --threads 2", "--plan run/plan.json", "--stages 2 --ranks 4"}},
      {"--beam 1 --batch 7 ", {"--stages 2", "--stages 3"}},
      {"--preset pipedream ", {"--stages 2"}},
      {"--preset mlperf --beam 3 --batch 64 ", {"--stages 3"}},
      {"--max-length 4 --n-best 2 --max-source 3 ", {"--stages 3 --threads 3", "--stages 8"}}};
  for (const Case& c : cases) {
    const std::string expected = translated("odd.de", c.flags, "--threads 1");
    for (const char* ranks : c.ranks) EXPECT_EQ(translated("odd.de", c.flags, ranks), expected) << ranks;
  }
  EXPECT_EQ(translated("one.de", "", "--stages 2"), translated("one.de", "", ""));
  EXPECT_EQ(translated("none.de", "", "--stages 3"), "");

  // A plan with layers of dropout, and from the whole model's weights in one file.
  ok("train --model gnmt --layers 3 --hidden 16 --vocabulary " + vocabulary_size() +
     " --stages 3 --microbatches 3 --microbatch 4 --data data:de-en --steps 5 --rule adam --output-dir other "
     "--save-weights other.safetensors");
  EXPECT_NE(bytes("other/plan.json").find("dropout"), std::string::npos);
  const auto other = [&](const std::string& ranks) {
    ok("translate --checkpoint other.safetensors --input odd.de -o hyp --overwrite --max-length 20 " + ranks +
       kFlags);
    return bytes("hyp");
  };
  EXPECT_EQ(other("--plan other/plan.json"), other(""));
  // Scored as other runs are.
  const std::string table =
      ok("bleu --run run --input text.de text.en --translate='" + kFlags + " --beam 2 --stages 2'");
  EXPECT_NE(table.find("60 "), std::string::npos) << table;
}

TEST_F(Translate, StagesThatDoNotFitAreRefused) {
  train(2);
  ok("train --model gnmt --layers 3 --hidden 16 --vocabulary " + vocabulary_size() +
     " --stages 2 --microbatches 2 --data data:de-en --steps 1 --checkpoint-at-end --output-dir other");
  const auto fails = [&](const std::string& arguments, int code, const std::string& what) {
    const Ran ran = run("translate --checkpoint run --input text.de -o out.hyp " + arguments + kFlags);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(what), std::string::npos) << what << " not in\n" << ran.output;
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_FALSE(entry.path().filename().string().starts_with("out.hyp")) << entry.path();
  };
  write("bad.json", "{\"stages\": 3}");
  fails("--stages 2 --plan run/plan.json", 2, "--stages: does not go with --plan");
  fails("--plan none.json", 2, "none.json");
  fails("--plan bad.json", 2, "bad.json");
  fails("--stages 3 --ranks 4", 2, "--ranks: 4 cannot share out 3 stages");
  fails("--stages 30", 2, "--stages: 30 of a model of");
  EXPECT_EQ(run("translate --checkpoint run --stages 2 <text.de" + kFlags).code, 2);
  // The other run's model has a layer more.
  const Ran more =
      run("translate --checkpoint other --plan run/plan.json --input text.de -o out.hyp" + kFlags);
  EXPECT_EQ(more.code, 2) << more.output;
  EXPECT_NE(more.output.find("no stage has layer encoder.rnn_layers.2"), std::string::npos) << more.output;
}

/// Rank 1 is killed, or stops, in the middle: the others end, and nothing is left of the output.
TEST_F(Translate, ALostStageEndsTheOthers) {
  train(2);
  std::string all;
  for (int i = 0; i < 3000; ++i) all += bytes("text.de");
  write("long.de", all);
  const auto during = [&](const std::string& what) {
    // Rank 0 has begun to write when all have met.
    const std::string script =
        "cd " + folder_.string() +
        "; " MILLRACE_BIN_DIR
        "/millrace translate --checkpoint run --stages 3 --timeout 3 --input long.de -o "
        "lost.hyp" +
        kFlags +
        ">log 2>&1 & job=$!; for i in $(seq 600); do ls lost.hyp* >/dev/null 2>&1 && break; sleep 0.1; "
        "done; " +
        what + " $(pgrep -P $job | sed -n 2p); wait $job";
    const int status = std::system(("timeout 60 bash -c '" + script + "'").c_str());
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_FALSE(entry.path().filename().string().starts_with("lost.hyp")) << entry.path();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(during("kill -KILL"), 137) << bytes("log");
  EXPECT_EQ(during("kill -STOP"), 5) << bytes("log");
  EXPECT_NE(bytes("log").find(": no message after "), std::string::npos) << bytes("log");
}

TEST_F(Translate, BucketsOfLengthsResumeAtTheSameSentence) {
  const std::string common =
      "train --model gnmt --layers 2 --hidden 16 --vocabulary " + vocabulary_size() +
      " --microbatches 2 --microbatch 2 --data data:de-en --length-buckets 4 --length 32 ";
  ok(common + "--steps 20 --output-dir whole");
  ok(common + "--steps 13 --checkpoint-at-end --output-dir part");
  ok(common + "--steps 20 --resume part --output-dir part --stages 2");
  const auto losses = [&](const std::string& log) {
    std::vector<std::string> values = values_of(bytes(log), "loss");
    std::erase(values, "null");
    return values;
  };
  const std::vector<std::string> whole = losses("whole/steps.rank0.jsonl");
  ASSERT_EQ(whole.size(), 20u);
  EXPECT_EQ(std::vector(whole.begin() + 13, whole.end()), losses("part/steps.rank1.jsonl"));
  const Ran other =
      run("train --model gnmt --layers 2 --hidden 16 --vocabulary " + vocabulary_size() +
          " --microbatches 2 --microbatch 2 --data data:de-en --length 32 --resume part --steps 21");
  EXPECT_EQ(other.code, 4) << other.output;
  EXPECT_NE(other.output.find("length-buckets"), std::string::npos) << other.output;
  EXPECT_EQ(run(common + "--keep-last").code, 2);
  EXPECT_NE(run("train --model mlp --length-buckets 2 --steps 1").code, 0);
}

TEST_F(Translate, LinesStayInStep) {
  train(2);
  write("odd.de", "\nDer Hund\n   \nDer \xE2\x98\x83 Mann, der Baum der Vogel der Hund.\n\nHund");
  const std::string text = ok("translate --checkpoint run --input odd.de -o odd.hyp --max-source 6" + kFlags);
  const std::string hypotheses = bytes("odd.hyp");
  EXPECT_EQ(std::ranges::count(hypotheses, '\n'), 6) << hypotheses;
  EXPECT_EQ(hypotheses[0], '\n');
  EXPECT_NE(text.find("3 empty"), std::string::npos) << text;
  EXPECT_NE(text.find("1 cut"), std::string::npos) << text;
  EXPECT_NE(text.find("(--max-source): line 4"), std::string::npos) << text;
  const std::string best = ok("translate --checkpoint run --input odd.de --n-best 2 --beam 3" + kFlags);
  EXPECT_NE(best.find("1 ||| "), std::string::npos) << best;
  EXPECT_EQ(best.find("0 ||| "), std::string::npos) << best;
}

TEST_F(Translate, WhatIsWrongIsSaidAndNothingIsWritten) {
  train(2);
  write("bad.de", "gut\nnicht \xFF gut\n");
  write("small", "Der\n");
  const auto fails = [&](const std::string& arguments, int code, const std::string& what) {
    const Ran ran = run("translate -o out.hyp " + arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(what), std::string::npos) << what << " not in\n" << ran.output;
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_FALSE(entry.path().filename().string().starts_with("out.hyp")) << entry.path();
  };
  fails("--checkpoint run --input bad.de" + kFlags, 3, "bad.de:2: byte 7 (0xff) is no UTF-8");
  fails("--checkpoint run --input none.de" + kFlags, 3, "none.de");
  fails("--checkpoint run --input text.de -v small", 4, "is not the vocabulary that run was trained with");
  fails("--checkpoint w.safetensors --input text.de -v small", 4,
        "small: has 8 tokens, the model of w.safetensors");
  fails("--checkpoint nowhere --input text.de" + kFlags, 4, "nowhere");
  fails("--checkpoint run --input text.de -v none", 3, "none");
  fails("--checkpoint run --input text.de --n-best 6" + kFlags, 2, "--n-best: 6 of a beam of 5");
  write("taken.hyp", "mine");
  EXPECT_EQ(run("translate --checkpoint run --input text.de -o taken.hyp" + kFlags).code, 2);
  EXPECT_EQ(bytes("taken.hyp"), "mine");
  ok("translate --checkpoint run --input bad.de -o out.hyp --invalid-utf8 drop" + kFlags);
  EXPECT_EQ(std::ranges::count(bytes("out.hyp"), '\n'), 2);
}

TEST_F(Translate, JoinersBringTextBackAsItWas) {
  write("odd.en",
        "A dog's t-shirt (red), \"it -- was\" 3.5 %!\n...\n( a )b c(\n\n\xC2\xBFQu\xC3\xA9? "
        "\xE2\x80\x9Ex\xE2\x80\x9C-y\n");
  ok("data text vocab odd.en --joiners -o words");
  ok("data text encode odd.en --joiners -v words -o odd.tokens");
  ok("data text decode odd.tokens -v words -o odd.back");
  EXPECT_EQ(bytes("odd.back"), bytes("odd.en"));
}

}  // namespace
}  // namespace millrace
