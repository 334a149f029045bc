// The best checkpoint, early stopping and averaged weights of whole runs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Best : public Jobs {
 protected:
  /// The losses of the evaluations of an output folder, by step.
  std::map<std::int64_t, double> evaluations(const std::string& folder) {
    std::map<std::int64_t, double> losses;
    const Result<Json> summary = read_json((folder_ / folder / "summary.json").string());
    if (!summary) return losses;
    for (const Json& one : summary->find("evaluations")->items())
      losses[one.find("step")->as_int()] = one.find("loss")->as_double();
    return losses;
  }
  static std::int64_t step_of_least(const std::map<std::int64_t, double>& losses) {
    std::int64_t best = losses.begin()->first;
    for (const auto& [step, loss] : losses)
      if (loss < losses.at(best)) best = step;
    return best;
  }
  std::vector<std::string> steps_in(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_ / folder, ignored))
      if (entry.path().filename().string().starts_with("step-")) names.push_back(entry.path().filename());
    return names;
  }
  static std::string name_of(std::int64_t step) {
    return printed("step-%08lld", static_cast<long long>(step));
  }
  /// The float32 tensors of a safetensors file.
  std::map<std::string, std::vector<float>> weights(const std::string& file) {
    std::map<std::string, std::vector<float>> all;
    const std::string text = bytes(file);
    std::uint64_t head = 0;
    if (text.size() < sizeof head) return all;
    std::memcpy(&head, text.data(), sizeof head);
    const Result<Json> json = parse_json(std::string_view(text).substr(sizeof head, head), file);
    EXPECT_TRUE(json) << file;
    if (!json) return all;
    for (const auto& [name, tensor] : json->members()) {
      const Json* place = tensor.find("data_offsets");
      if (!place || name.starts_with("rule/")) continue;
      const auto begin = static_cast<std::size_t>(place->items()[0].as_int());
      std::vector<float>& values = all[name];
      values.resize((static_cast<std::size_t>(place->items()[1].as_int()) - begin) / sizeof(float));
      std::memcpy(values.data(), text.data() + sizeof head + head + begin, values.size() * sizeof(float));
    }
    return all;
  }
};

constexpr const char* kShortRun =
    "train --model mlp --width 16 --threads 1 --deterministic --evaluate-every 2 ";

TEST_F(Best, CheckpointStaysBesideTheNewestAlsoOverAResume) {
  // With this rate the loss falls and then rises again.
  const std::string keeps =
      std::string(kShortRun) +
      "--lr 0.5 --keep-best loss --keep-checkpoints 1 --checkpoint-every 4 --checkpoint-at-end ";
  const Ran whole = run(keeps + "--stages 2 --steps 16 --output-dir whole");
  ASSERT_EQ(whole.code, 0) << whole.output;
  const std::map<std::int64_t, double> losses = evaluations("whole");
  ASSERT_EQ(losses.size(), 8u);
  const std::int64_t best = step_of_least(losses);
  ASSERT_NE(best, 16) << "the test needs a rate for which the last is not the best";
  EXPECT_EQ(steps_in("whole/best"), std::vector{name_of(best)});
  EXPECT_EQ(steps_in("whole/checkpoints"), std::vector{name_of(16)});
  // Its weights have the loss of that evaluation.
  const Ran judged = run("evaluate --model mlp --width 16 --threads 1 --weights whole/best");
  EXPECT_NE(judged.output.find(printed("evaluation: loss %.4f", losses.at(best))), std::string::npos)
      << judged.output;
  // In two parts, of which the second has another plan: what was best before counts.
  ASSERT_EQ(run(keeps + "--stages 2 --steps 12 --output-dir parts").code, 0);
  const Ran second = run(keeps + "--stages 3 --steps 16 --output-dir parts --resume parts");
  ASSERT_EQ(second.code, 0) << second.output;
  EXPECT_EQ(steps_in("parts/best"), steps_in("whole/best"));
  const Result<Json> summary = read_json((folder_ / "parts/summary.json").string());
  ASSERT_TRUE(summary && summary->find("best"));
  EXPECT_EQ(summary->find("best")->find("loss")->find("step")->as_int(), best);
  EXPECT_EQ(summary->find("best")->find("loss")->find("value")->as_double(), losses.at(best));
}

/// exp() of a loss overflows: the best perplexity is infinite, and the run goes on from its checkpoint all
/// the same.
TEST_F(Best, AnInfiniteValueIsKeptByAndResumedFrom) {
  const std::string keeps =
      "train --model transformer_lm --hidden 16 --feed-forward 16 --vocabulary 50 --length 8 --heads 2 "
      "--data "
      "synthetic:16 --microbatch 2 --threads 1 --evaluate-every 1 --checkpoint-every 1 --keep-best "
      "perplexity --output-dir out --steps ";
  const Ran begun = run(keeps + "2 --lr 1000");
  ASSERT_EQ(begun.code, 0) << begun.output;
  ASSERT_NE(bytes("out/checkpoints/step-00000002/manifest.json").find("\"Infinity\""), std::string::npos)
      << "the test needs a rate for which the perplexity overflows";
  EXPECT_EQ(run("checkpoint verify out").code, 0);
  const Ran resumed = run(keeps + "3 --resume out --resume-changes all --lr 0 --momentum 0");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  const Result<Json> summary = read_json((folder_ / "out/summary.json").string());
  ASSERT_TRUE(summary && summary->find("best"));
  EXPECT_EQ(summary->find("best")->find("perplexity")->find("value")->dump(), "\"Infinity\"");
  EXPECT_EQ(summary->find("best")->find("perplexity")->find("step")->as_int(), 1);
}

TEST_F(Best, CheckpointOfAnAbandonedBranchIsSetAside) {
  const std::string keeps =
      std::string(kShortRun) + "--keep-best loss --checkpoint-every 2 --keep-checkpoints 0 ";
  ASSERT_EQ(run(keeps + "--steps 8 --lr 0.05 --output-dir out").code, 0);
  const std::int64_t best = step_of_least(evaluations("out"));
  ASSERT_GT(best, 2);
  // Back to before the best, with a rate that learns nothing.
  const Ran back = run(keeps + "--steps 4 --output-dir out --resume out/checkpoints/" + name_of(2) +
                       " --resume-changes all --lr 0 --momentum 0");
  ASSERT_EQ(back.code, 0) << back.output;
  EXPECT_EQ(steps_in("out/best/abandoned-1"), std::vector{name_of(best)});
  for (const std::string& step : steps_in("out/best")) EXPECT_LE(step, name_of(4));
}

TEST_F(Best, EarlyStopEndsAllRanksAndSaysSo) {
  const std::string stops =
      std::string(kShortRun) +
      "--stages 2 --lr 0.5 --early-stop loss:3 --checkpoint-at-end --checkpoint-every 4 ";
  const Ran ran = run(stops + "--steps 4000 --output-dir out");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("early stop: no better loss in 3 evaluations"), std::string::npos) << ran.output;
  const std::map<std::int64_t, double> losses = evaluations("out");
  const std::int64_t last = losses.rbegin()->first;
  EXPECT_EQ(last - step_of_least(losses), 3 * 2) << "three evaluations after the best";
  ASSERT_LT(last, 4000);
  EXPECT_EQ(steps_in("out/checkpoints").size(),
            std::min<std::size_t>(3, static_cast<std::size_t>((last + 3) / 4)));
  // A run in two parts ends after the same step: the count goes on.
  const std::int64_t middle = (last - 1) / 4 * 4;
  ASSERT_GT(middle, 0);
  ASSERT_EQ(run(stops + "--steps " + std::to_string(middle) + " --output-dir parts").code, 0);
  const Ran second = run(stops + "--steps 4000 --output-dir parts --resume parts");
  ASSERT_EQ(second.code, 0) << second.output;
  EXPECT_EQ(evaluations("parts").rbegin()->first, last);
}

TEST_F(Best, MetricsThatNobodyReportsAreRefused) {
  struct Refused {
    const char* flags;
    const char* says;
  };
  for (const Refused& one : {Refused{"--keep-best nope --output-dir a", "is no metric"},
                             {"--keep-best loss", "needs a place"},
                             {"--keep-best dice --output-dir b", "have no metric 'dice'"},
                             {"--keep-best bleu --output-dir c", "--bleu-every"},
                             {"--early-stop top1", "METRIC:N"},
                             {"--early-stop top1:0", "METRIC:N"},
                             {"--early-stop top1:2 --no-evaluation", "there are none"},
                             {"--early-stop top1:2 --schedule pipedream", "never flushes"},
                             {"--early-stop top1:2 --fused --lr 0.1 0.2", "several"}}) {
    const Ran ran = run("train --model mlp --width 16 --stages 2 --steps 2 " + std::string(one.flags));
    EXPECT_EQ(ran.code, 2) << one.flags << "\n" << ran.output;
    EXPECT_NE(ran.output.find(one.says), std::string::npos) << one.flags << "\n" << ran.output;
  }
  const Ran one_class =
      run("train --model dlrm --table-rows-cap 10 --microbatches 1 --data synthetic:1 --microbatch 1 --steps "
          "1 --keep-best auc --output-dir d");
  EXPECT_EQ(one_class.code, 2) << one_class.output;
  EXPECT_NE(one_class.output.find("auc needs a model of two classes, and test data with samples of both"),
            std::string::npos)
      << one_class.output;
}

TEST_F(Best, AveragedWeightsFollowTheirFormulaInEveryPlan) {
  const std::string common =
      "train --model mlp --width 16 --threads 1 --deterministic --lr 0.1 --microbatches 4 --ema 0.75 "
      "--evaluate-every 3 ";
  ASSERT_EQ(run(common + "--steps 6 --checkpoint-every 1 --keep-checkpoints 0 --output-dir one "
                         "--save-weights one.safetensors")
                .code,
            0);
  std::map<std::string, std::vector<float>> average;
  for (int step = 1; step <= 6; ++step) {
    const auto now = weights("one/checkpoints/" + name_of(step) + "/stage0.safetensors");
    ASSERT_FALSE(now.empty());
    if (average.empty()) average = now;
    for (const auto& [name, values] : now) {
      for (std::size_t i = 0; step > 1 && i < values.size(); ++i) {
        const volatile float kept = average[name][i] * 0.75f, added = values[i] * 0.25f;  // no fused sum
        average[name][i] = kept + added;
      }
    }
  }
  EXPECT_EQ(weights("one.safetensors"), average);
  // The bits are the same in another plan, with a state that replicas share, and over a resume.
  const auto same = [&](const std::string& flags, const std::string& reference) {
    const Ran ran = run(common + flags + " --steps 6 --save-weights w.safetensors --overwrite");
    ASSERT_EQ(ran.code, 0) << ran.output;
    EXPECT_TRUE(bytes("w.safetensors") == bytes(reference)) << flags;
  };
  same("--stages 3 --output-dir two", "one.safetensors");
  same("--stages 2 --schedule gpipe --output-dir two", "one.safetensors");
  ASSERT_EQ(run(common + "--stages 2 --replicas 2 --steps 6 --save-weights r.safetensors").code, 0);
  same("--stages 2 --replicas 2 --zero-1 --output-dir two --checkpoint-at-end", "r.safetensors");
  const Ran resumed = run(common + "--stages 2 --steps 6 --resume one/checkpoints/" + name_of(3) +
                          " --output-dir three --checkpoint-at-end --save-weights w.safetensors");
  ASSERT_EQ(resumed.code, 0) << resumed.output;
  EXPECT_TRUE(bytes("w.safetensors") == bytes("one.safetensors"));
  // Evaluations use the average.
  const Ran judged = run("evaluate --model mlp --width 16 --threads 1 --weights one.safetensors");
  const double loss = evaluations("one").at(6);
  EXPECT_NE(judged.output.find(printed("evaluation: loss %.4f", loss)), std::string::npos) << judged.output;
  // So does `evaluate` of a checkpoint, which has the weights too, also where replicas share the average.
  for (const char* folder : {"one", "three", "two"}) {
    const Ran ran =
        run(std::string("evaluate --model mlp --width 16 --threads 1 --format json --weights ") + folder);
    const auto json =
        parse_json(ran.output.substr(std::min(ran.output.find('{'), ran.output.size())), folder);
    ASSERT_TRUE(json) << ran.output;
    // Replicas add up in another order.
    EXPECT_NEAR(json->find("evaluations")->items().front().find("loss")->as_double(),
                evaluations(folder).at(6), 1e-9)
        << folder;
  }
}

}  // namespace
}  // namespace millrace
