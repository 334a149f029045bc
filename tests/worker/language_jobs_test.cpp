// Makes a trained translator from raw text: token files, profile, plan, launch.
#include <algorithm>
#include <span>

#include "data/files/npy.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class LanguageJobs : public Jobs {
 protected:
  /// Settings as flags, and the same settings as lines of a job file.
  struct Told {
    std::string flags, job;
  };
  static void add(Told& told, std::span<const std::pair<const char*, const char*>> settings) {
    for (const auto& [key, value] : settings) {
      told.flags += std::string(" --") + key + " " + value;
      told.job += std::string(key) + ": " + value + "\n";
    }
  }
  /// 20 steps in one process, over three stages, and with a break: the same weights. `printed`: by the first.
  void train_over_stages_and_with_a_break(const Told& told, const std::string& more, std::string& printed) {
    const Ran one = run("train" + told.flags + " --steps 20 --save-weights one.safetensors");
    ASSERT_EQ(one.code, 0) << one.output;
    printed = one.output;
    write("job.yaml",
          told.job + "steps: 20\nstages: 3\nschedule: zb-h1\nsave-weights: three.safetensors\n" + more);
    const Ran three = run("launch job.yaml");
    ASSERT_EQ(three.code, 0) << three.output;
    EXPECT_EQ(bytes("one.safetensors"), bytes("three.safetensors"));
    const Ran first = run("train" + told.flags + " --steps 9 --output-dir first --checkpoint-at-end");
    ASSERT_EQ(first.code, 0) << first.output;
    const Ran rest =
        run("train" + told.flags + " --steps 20 --resume first --save-weights resumed.safetensors");
    ASSERT_EQ(rest.code, 0) << rest.output;
    EXPECT_EQ(bytes("one.safetensors"), bytes("resumed.safetensors"));
  }
  /// Pairs of sentences of 1 to 7 words; the target says the source backwards.
  void write_pairs(const std::string& split, int count) {
    std::string source, target;
    for (int line = 0; line < count; ++line) {
      std::string there, back;
      for (int word = 0; word < 1 + line % 7; ++word) {
        const std::string text = "w" + std::to_string((line * 5 + word * 3) % 11);
        there += (there.empty() ? "" : " ") + text;
        back = text + (back.empty() ? "" : " ") + back;
      }
      source += there + "\n";
      target += back + "\n";
    }
    write(split + ".de", source);
    write(split + ".en", target);
  }
};

TEST_F(LanguageJobs, RawTextIsLaunchedThroughAPlanAsOneProcessTrainsIt) {
  write_pairs("train", 50);
  write_pairs("test", 10);
  const Ran words = run("data text vocab train.de train.en -o words");
  ASSERT_EQ(words.code, 0) << words.output;
  fs::create_directory(folder_ / "pairs");
  const Ran encoded =
      run("data text encode train.de train.en -v words -o pairs/train.de.tokens -o pairs/train.en.tokens");
  ASSERT_EQ(encoded.code, 0) << encoded.output;
  const Ran tested =
      run("data text encode test.de test.en -v words -o pairs/test.de.tokens -o pairs/test.en.tokens");
  ASSERT_EQ(tested.code, 0) << tested.output;
  const std::string model = "--model gnmt --layers 2 --hidden 16 --vocabulary 16 --length 12 --microbatch 4 ";
  const Ran profile = run("profile " + model + "--repetitions 1 --blocks 1 --warmup 0 --out profile.json");
  ASSERT_EQ(profile.code, 0) << profile.output;
  const Ran plan = run(
      "plan --profile profile.json --stages 2 --straight --microbatches 3 --schedule 1f1b --out plan.json");
  ASSERT_EQ(plan.code, 0) << plan.output;
  write(
      "job.yaml",
      "model: gnmt\nlayers: 2\nhidden: 16\nvocabulary: 16\nlength: 12\nplan: plan.json\nmicrobatch: 4\n"
      "data: pairs:de-en\nrule: adam\nlr: 0.01\nepochs: 2\nsave-weights: two.safetensors\noutput-dir: run\n");
  const Ran launch = run("launch job.yaml");
  ASSERT_EQ(launch.code, 0) << launch.output;
  EXPECT_NE(launch.output.find("perplexity"), std::string::npos) << launch.output;
  const Ran one = run("train " + model +
                      "--microbatches 3 --data pairs:de-en --rule adam --lr 0.01 --epochs 2 "
                      "--save-weights one.safetensors");
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_EQ(bytes("one.safetensors"), bytes("two.safetensors"));
}

/// Tokens mean other words under another vocabulary: nothing else would say so but a perplexity.
TEST_F(LanguageJobs, TokensOfAnotherVocabularyAreRefused) {
  write_pairs("train", 30);
  write_pairs("test", 9);
  ASSERT_EQ(run("data text vocab train.de train.en -o words").code, 0);
  const std::string known = bytes("words");
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < known.size(); at = known.find('\n', at) + 1)
    lines.push_back(known.substr(at, known.find('\n', at) - at));
  ASSERT_GT(lines.size(), 6);
  std::swap(lines[lines.size() - 1], lines[lines.size() - 2]);
  std::string other;
  for (const std::string& line : lines) other += line + "\n";
  write("others", other);
  const auto encode = [&](const std::string& text, const std::string& words, const std::string& to) {
    const Ran ran = run("data text encode " + text + " -v " + words + " -o " + to + ".tokens");
    ASSERT_EQ(ran.code, 0) << ran.output;
  };
  const auto expect_refused = [&](const std::string& flags, const std::vector<std::string>& parts) {
    const Ran ran = run("train " + flags + " --microbatch 2 --steps 2");
    EXPECT_EQ(ran.code, 3) << ran.output;
    for (const std::string& part : parts) EXPECT_NE(ran.output.find(part), std::string::npos) << ran.output;
  };
  fs::create_directory(folder_ / "text");
  encode("train.de", "words", "text/train");
  encode("test.de", "others", "text/test");
  expect_refused("--model transformer_lm --vocabulary 16 --length 5 --data text",
                 {"the vocabulary of training", "text/train.tokens", "text/test.tokens"});
  fs::create_directory(folder_ / "pairs");
  encode("train.de", "words", "pairs/train.de");
  encode("train.en", "others", "pairs/train.en");
  const std::string gnmt =
      "--model gnmt --layers 2 --hidden 8 --vocabulary 16 --length 12 --data pairs:de-en";
  expect_refused(gnmt + " --embeddings shared", {"one embedding for both", "--embeddings separate"});
  EXPECT_EQ(run("train " + gnmt + " --microbatch 2 --steps 2").code, 0) << "two vocabularies, two embeddings";
  expect_refused("--model bert_base --layers 1 --hidden 8 --heads 2 --vocabulary 16 --data text",
                 {"text/train.tokens", "BERT reads wordpiece"});
}

/// States, dropout, the trigger of averages: the same weights through three stages, and with a break.
TEST_F(LanguageJobs, RunningTextGoesOnThroughStagesAndBreaks) {
  write_pairs("train", 80);
  write_pairs("valid", 20);
  ASSERT_EQ(run("data text vocab train.de -o words").code, 0);
  fs::create_directory(folder_ / "text");
  for (const std::string split : {"train", "valid"}) {
    const Ran encoded = run("data text encode " + split + ".de -v words -o text/" + split + ".tokens");
    ASSERT_EQ(encoded.code, 0) << encoded.output;
  }
  const std::pair<const char*, const char*> settings[] = {
      {"model", "awd_lstm"}, {"embedding-features", "8"}, {"hidden", "12"},  {"vocabulary", "16"},
      {"length", "5"},       {"microbatch", "2"},         {"data", "text"},  {"microbatches", "2"},
      {"rule", "asgd"},      {"nonmonotone", "1"},        {"lr", "4"},       {"evaluate-every", "2"},
      {"lambd", "0"},        {"average-start", "0"},      {"clip-norm", "1"}};
  for (const bool random : {false, true}) {
    Told told;
    if (random) told = {" --random-bptt --lr-by-length", "random-bptt: true\nlr-by-length: true\n"};
    add(told, settings);
    std::string printed;
    ASSERT_NO_FATAL_FAILURE(train_over_stages_and_with_a_break(told, "output-dir: run\n", printed));
    EXPECT_NE(printed.find("tokens.perplexity"), std::string::npos) << printed;
    EXPECT_NE(printed.find("averaging begins"), std::string::npos) << printed;
    for (const char* folder : {"run", "first"}) fs::remove_all(folder_ / folder);
  }
  EXPECT_NE(run("train --model s2vt --random-bptt --steps 1").code, 0);
  const Ran refused = run("train --model mlp --lr-by-length --steps 1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.output.find("--lr-by-length"), std::string::npos) << refused.output;
}

TEST_F(LanguageJobs, ClustersOfRareTokensAreALaunchedJobsToo) {
  const std::pair<const char*, const char*> settings[] = {
      {"model", "transformer_lm"}, {"hidden", "8"},       {"feed-forward", "8"},    {"vocabulary", "64"},
      {"softmax", "adaptive"},     {"cutoffs", "8,20"},   {"divisor", "2"},         {"length", "9"},
      {"microbatch", "2"},         {"microbatches", "2"}, {"data", "synthetic:64"}, {"steps", "6"}};
  Told told;
  add(told, settings);
  const Ran one = run("train" + told.flags + " --save-weights one.safetensors");
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_NE(one.output.find("perplexity"), std::string::npos) << one.output;
  EXPECT_EQ(one.output.find("accuracy"), std::string::npos) << one.output;
  write("job.yaml", told.job + "stages: 2\nschedule: 1f1b\nsave-weights: two.safetensors\n");
  const Ran two = run("launch job.yaml");
  ASSERT_EQ(two.code, 0) << two.output;
  EXPECT_EQ(bytes("one.safetensors"), bytes("two.safetensors"));
  const Ran refused = run("train --model awd_lstm --softmax adaptive --steps 1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.output.find("--embeddings separate"), std::string::npos) << refused.output;
}

/// Trains on features and captions. Three stages give the same weights as one process and as a run that was
/// interrupted.
TEST_F(LanguageJobs, CaptionsOfVideosAreLearnedThroughStagesAndBreaks) {
  constexpr std::int64_t kFeatures = 5;
  fs::create_directories(folder_ / "videos" / "features");
  std::string words;
  for (const std::string split : {"train", "valid"}) {
    std::string captions;
    for (int video = 0; video < 12; ++video) {
      const std::string name = split + std::to_string(video);
      const std::int64_t frames = 2 + video % 5;
      std::vector<float> features;
      for (std::int64_t i = 0; i < frames * kFeatures; ++i)
        features.push_back(static_cast<float>((video * 7 + i) % 11) / 11);
      write("videos/features/" + name + ".npy",
            npy_header("<f4", {frames, kFeatures}) +
                std::string(reinterpret_cast<const char*>(features.data()), features.size() * sizeof(float)));
      for (int caption = 0; caption < 2; ++caption) {
        std::string text;
        for (int word = 0; word < 1 + (video + caption) % 4; ++word)
          text += (word > 0 ? " w" : "w") + std::to_string((video + word) % 9);
        captions += name + "\t" + text + "\n";
        words += text + "\n";
      }
    }
    write("videos/" + split + ".captions", captions);
  }
  write("words", words);
  ASSERT_EQ(run("data text vocab words -o videos/vocabulary.txt").code, 0);
  const std::pair<const char*, const char*> settings[] = {
      {"model", "s2vt"},  {"frame-features", "5"}, {"embedding-features", "6"},
      {"hidden", "8"},    {"vocabulary", "16"},    {"length", "10"},
      {"dropout", "0.2"}, {"microbatch", "2"},     {"microbatches", "2"},
      {"data", "videos"}, {"rule", "sgd"},         {"momentum", "0.9"},
      {"clip-norm", "1"}, {"lr", "0.5"},           {"evaluate-every", "6"}};
  Told told;
  add(told, settings);
  std::string printed;
  ASSERT_NO_FATAL_FAILURE(train_over_stages_and_with_a_break(told, "", printed));
  EXPECT_NE(printed.find("perplexity"), std::string::npos) << printed;

  // New videos: names in, captions out, the same over ranks; scored against what is said of them.
  std::string names = "\n", references = "\n";
  for (int video = 0; video < 7; ++video) {
    names += "train" + std::to_string(video % 4) + "\n";
    references += "w1 w2\n";
  }
  write("names", names);
  write("references", references);
  const std::string say =
      "translate --checkpoint first --features videos/features -v videos/vocabulary.txt "
      "--batch 3 "
      "--overwrite ";
  const Ran said = run(say + "--input names -o said --threads 1");
  ASSERT_EQ(said.code, 0) << said.output;
  EXPECT_NE(said.output.find("8 videos, "), std::string::npos) << said.output;
  EXPECT_NE(said.output.find("1 empty"), std::string::npos) << said.output;
  EXPECT_EQ(std::ranges::count(bytes("said"), '\n'), 8) << bytes("said");
  EXPECT_EQ(bytes("said").front(), '\n');
  ASSERT_EQ(run(say + "--input names -o shared --ranks 2").code, 0);
  EXPECT_EQ(bytes("shared"), bytes("said"));
  EXPECT_EQ(run(say + "--input names -o greedy --beam 1").code, 0);
  const Ran scored = run("bleu said references");
  EXPECT_EQ(scored.code, 0) << scored.output;
  const Ran all =
      run("bleu --run first --input names references --translate='--features videos/features -v "
          "videos/vocabulary.txt'");
  EXPECT_EQ(all.code, 0) << all.output;
  const auto refuses = [&](const std::string& flags, int code, const std::string& what) {
    const Ran ran = run(say + "-o none " + flags);
    EXPECT_EQ(ran.code, code) << ran.output;
    EXPECT_NE(ran.output.find(what), std::string::npos) << ran.output;
    EXPECT_FALSE(fs::exists(folder_ / "none"));
  };
  write("unknown", "train0\nnobody\n");
  refuses("--input unknown", 3, "unknown:2");
  write("away", "../train0\n");
  refuses("--input away", 3, "away:1");
  refuses("--input names --stages 2", 2, "--stages: does not go with --features");
  write("few", "w0\nw1\n");
  refuses("--input names -v few", 4, "is not the vocabulary that first was trained with");

  write("videos/train.captions", "train0\tw1 w2\nnobody\tw3\n");
  const Ran refused = run("train" + told.flags + " --steps 1");
  EXPECT_EQ(refused.code, 3) << refused.output;
  EXPECT_NE(refused.output.find("videos/train.captions:2"), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("videos/features/nobody.npy"), std::string::npos) << refused.output;
}

// Times are of the data's own microbatches, and the profile, the plan and both commands say of which.
TEST_F(LanguageJobs, AProfileOfTheDataHoldsForItsLengths) {
  write_pairs("train", 100);
  ASSERT_EQ(run("data text vocab train.de train.en -o words").code, 0);
  fs::create_directory(folder_ / "pairs");
  ASSERT_EQ(
      run("data text encode train.de train.en -v words -o pairs/train.de.tokens -o pairs/train.en.tokens")
          .code,
      0);
  const std::string profile =
      "profile --model gnmt --layers 2 --hidden 16 --vocabulary 16 --length 12 --microbatch 4 --repetitions "
      "1 "
      "--blocks 1 --out profile.json ";
  const Ran ran = run(profile + "--data pairs:de-en --microbatches 3 --measured-microbatches 7");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("holds for microbatches of source_length"), std::string::npos) << ran.output;
  const Result<LayerGraph> graph = LayerGraph::load((folder_ / "profile.json").string());
  ASSERT_TRUE(graph) << to_string(graph.problems());
  EXPECT_EQ(graph->microbatches.size(), 9u);  // whole steps
  EXPECT_EQ(graph->length_factors().size(), 9u);
  for (const LayerNode& node : graph->nodes) EXPECT_EQ(node.of_microbatches.size(), 9u) << node.name;
  for (const LayerEdge& edge : graph->edges) EXPECT_EQ(edge.of_microbatches.size(), 9u) << edge.tensor;
  EXPECT_GT(graph->norm_s_per_byte, 0);
  EXPECT_GT(graph->data_s, 0);
  std::int64_t least = 100, most = 0;
  for (const MeasuredMicrobatch& one : graph->microbatches) {
    ASSERT_EQ(one.lengths.size(), 2u);
    EXPECT_GT(one.seconds, 0);
    least = std::min(least, one.lengths[0]);
    most = std::max(most, one.lengths[0]);
  }
  EXPECT_LT(least, most);
  EXPECT_LE(most, 9);  // 7 words, begin and end
  const Ran plan =
      run("plan --profile profile.json --stages 2 --straight --microbatches 3 --schedule 1f1b --out "
          "plan.json --explain");
  ASSERT_EQ(plan.code, 0) << plan.output;
  EXPECT_NE(plan.output.find("the profile holds for microbatches of source_length"), std::string::npos)
      << plan.output;
  EXPECT_NE(plan.output.find("+ lengths "), std::string::npos) << plan.output;

  const Ran clipped =
      run("plan --profile profile.json --stages 2 --straight --microbatches 3 --schedule 1f1b --clip-norm "
          "--out clipped.json");
  ASSERT_EQ(clipped.code, 0) << clipped.output;
  EXPECT_GT(Plan::load((folder_ / "clipped.json").string())->predicted_step_s,
            Plan::load((folder_ / "plan.json").string())->predicted_step_s);

  // The plan says it too, and a run with other data is told.
  const Result<Plan> made = Plan::load((folder_ / "plan.json").string());
  ASSERT_TRUE(made);
  EXPECT_EQ(made->planned_for.lengths, graph->length_ranges());
  const std::string train =
      "train --model gnmt --layers 2 --hidden 16 --vocabulary 16 --length 12 --microbatch 4 --steps 1 "
      "--no-evaluation --plan plan.json --data ";
  const Ran same = run(train + "pairs:de-en");
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_EQ(same.output.find("do not hold"), std::string::npos) << same.output;
  std::string words;
  for (int line = 0; line < 100; ++line) words += "w1 w2 w3 w4 w5 w6 w7 w8 w9\n";
  for (const char* side : {"train.de", "train.en"}) write(side, words);
  fs::create_directory(folder_ / "long");
  ASSERT_EQ(
      run("data text encode train.de train.en -v words -o long/train.de.tokens -o long/train.en.tokens").code,
      0);
  const Ran longer = run(train + "long:de-en");
  EXPECT_EQ(longer.code, 0) << longer.output;
  EXPECT_NE(longer.output.find("plan.json: its predictions do not hold: they are for microbatches of source"),
            std::string::npos)
      << longer.output;

  const Ran buckets = run(profile + "--data pairs:de-en --microbatches 3 --length-buckets 2");
  EXPECT_EQ(buckets.code, 0) << buckets.output;
  EXPECT_NE(buckets.output.find("holds for microbatches of source_length"), std::string::npos);
  EXPECT_EQ(run(profile + "--length-buckets 2").code, 2);
  EXPECT_EQ(run(profile + "--measured-microbatches 3").code, 2);
  const Ran missing = run(profile + "--data nothing:de-en");
  EXPECT_EQ(missing.code, 3) << missing.output;
  EXPECT_NE(missing.output.find("nothing"), std::string::npos) << missing.output;
}

TEST_F(LanguageJobs, WhatThereIsNotIsSaidBeforeAnyRankStarts) {
  for (const auto& [data, missing] :
       {std::pair("pairs:de-en", "pairs: is not there"),
        std::pair("arrays:a.npz,b.npz", "b.npz: is not there"), std::pair("pairs", "pairs: is not there")}) {
    write("job.yaml", std::string("model: gnmt\ndata: ") + data + "\nsteps: 1\noutput-dir: run\n");
    const Ran ran = run("launch job.yaml");
    EXPECT_EQ(ran.code, 2) << ran.output;
    EXPECT_NE(ran.output.find(missing), std::string::npos) << ran.output;
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  }
}

}  // namespace
}  // namespace millrace
