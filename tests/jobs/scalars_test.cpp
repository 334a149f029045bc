// The numbers of a run that is under way: TensorBoard's event files and a table, read by what they promise.
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "data/files/protobuf.h"
#include "data/files/tfrecord.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

constexpr const char* kPlainRun = "train --model mlp --width 16 --stages 2 --threads 1 --evaluate-every 4 ";

class ScalarFiles : public Jobs {
 protected:
  using ByStep = std::map<std::int64_t, float>;

  /// Reads all event files of a folder as TensorBoard does: in the order of their names, and a START drops
  /// what came before of its step and later ones.
  std::map<std::string, ByStep> events(const std::string& folder) {
    std::map<std::string, ByStep> values;
    std::set<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_ / folder)) files.insert(entry.path());
    for (const fs::path& file : files) {
      const std::string text = bytes(fs::relative(file, folder_).string());
      TfRecordReader records(text, file.string());
      bool is_first = true;
      while (!records.at_end()) {
        const Result<std::string_view> record = records.next();
        EXPECT_TRUE(record) << "a record is whole or not there";
        if (!record) break;
        take_event(*record, std::exchange(is_first, false), values);
      }
    }
    return values;
  }

  /// The cells of a table by column and step.
  std::map<std::string, std::map<std::int64_t, std::string>> table(const std::string& file) {
    std::map<std::string, std::map<std::int64_t, std::string>> cells;
    const std::vector<std::string> lines = split(bytes(file), '\n');
    const std::vector<std::string> names = split(lines.front(), ',');
    for (std::size_t i = 1; i + 1 < lines.size(); ++i) {
      const std::vector<std::string> row = split(lines[i], ',');
      EXPECT_EQ(row.size(), names.size()) << lines[i];
      for (std::size_t c = 0; c < std::min(row.size(), names.size()); ++c)
        if (!row[c].empty()) cells[names[c]][number_of<std::int64_t>(row[0]).value_or(-1)] = row[c];
    }
    return cells;
  }

 private:
  static float float_of(std::string_view text) {
    float value = 0;
    std::memcpy(&value, text.data(), sizeof value);
    return value;
  }
  static void take_event(std::string_view record, bool is_first, std::map<std::string, ByStep>& values) {
    ProtoReader event(record);
    std::int64_t step = 0;
    bool starts = false;
    std::string version, name;
    std::optional<float> value;
    while (event.next()) {
      if (event.field() == 2) step = static_cast<std::int64_t>(event.integer());
      if (event.field() == 3) version = event.bytes();
      if (event.field() == 7) starts = true;
      if (event.field() != 5) continue;
      ProtoReader summary(event.bytes());
      ASSERT_TRUE(summary.next());
      ProtoReader scalar(summary.bytes());
      while (scalar.next()) {
        if (scalar.field() == 1) name = scalar.bytes();
        if (scalar.field() == 2) value = float_of(scalar.bytes());
      }
    }
    EXPECT_FALSE(event.damaged());
    EXPECT_EQ(version, is_first ? "brain.Event:2" : "");
    if (starts)
      for (auto& [tag, steps] : values) steps.erase(steps.lower_bound(step), steps.end());
    if (value) values[name][step] = *value;
  }
};

std::vector<std::int64_t> steps_of(const auto& by_step) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, value] : by_step) steps.push_back(step);
  return steps;
}

std::vector<std::int64_t> up_to(std::int64_t end) {
  std::vector<std::int64_t> all;
  for (std::int64_t step = 0; step < end; ++step) all.push_back(step);
  return all;
}

TEST_F(ScalarFiles, OfARunThatGoesOnHaveEachStepOnce) {
  const std::string files = "--checkpoint-every 6 --output-dir out --tensorboard tb --scalars scalars.csv ";
  const Ran first = run(kPlainRun + files + "--steps 10");
  ASSERT_EQ(first.code, 0) << first.output;
  // Steps 6 to 9 are done again, with another rate, so that it shows which values stay.
  const Ran second = run(kPlainRun + files + "--steps 13 --resume out --resume-changes all --lr 0.5");
  ASSERT_EQ(second.code, 0) << second.output;
  const auto logged = events("tb");
  const auto rows = table("scalars.csv");
  ASSERT_TRUE(logged.contains("loss") && rows.contains("loss"));
  EXPECT_EQ(steps_of(logged.at("loss")), up_to(13));
  EXPECT_EQ(steps_of(rows.at("loss")), up_to(13));
  const std::vector<std::int64_t> evaluated{3, 7, 11, 12};
  EXPECT_EQ(steps_of(logged.at("evaluation_top1")), evaluated);
  EXPECT_EQ(steps_of(rows.at("evaluation_top1")), evaluated);
  for (const std::int64_t step : up_to(13)) {
    EXPECT_FLOAT_EQ(logged.at("lr").at(step), step < 6 ? 0.01f : 0.5f) << step;
    EXPECT_FLOAT_EQ(logged.at("loss").at(step), number_of<float>(rows.at("loss").at(step)).value_or(-1));
  }
  // They are the step log's numbers.
  const std::string log = bytes("out/steps.rank1.jsonl");
  for (const char* name : {"loss", "evaluation_loss"}) {
    const std::string key = name == std::string("loss") ? "\"loss\":" : "\"of\":\"evaluation\",\"loss\":";
    for (const auto& [step, text] : rows.at(name)) EXPECT_NE(log.find(key + text), std::string::npos) << text;
  }
}

TEST_F(ScalarFiles, OfAKilledRunAreReadable) {
  // It is killed where it can be seen that it trains.
  const std::string line = "cd " + folder_.string() + " && { " MILLRACE_BIN_DIR "/millrace " + kPlainRun +
                           "--steps 100000000 --tensorboard tb --scalars s.csv >log 2>&1 & pid=$!; " +
                           "for i in $(seq 600); do [ \"$(cat s.csv 2>/dev/null | wc -l)\" -gt 20 ] && "
                           "break; sleep 0.1; done; kill -9 $pid; wait $pid; }";
  EXPECT_NE(std::system(line.c_str()), 0);
  const auto logged = events("tb");
  const auto rows = table("s.csv");
  ASSERT_TRUE(logged.contains("loss") && rows.contains("loss")) << bytes("log");
  EXPECT_GE(rows.at("loss").size(), 19u);
  EXPECT_GE(logged.at("loss").size() + 1, rows.at("loss").size());
  EXPECT_EQ(steps_of(logged.at("loss")), up_to(std::ssize(logged.at("loss"))));
}

TEST_F(ScalarFiles, OfAnotherRunAreRefusedOrDeleted) {
  ASSERT_EQ(run(std::string(kPlainRun) + "--steps 3 --output-dir a --tensorboard tb --scalars s.csv").code,
            0);
  const std::string before = bytes("s.csv");
  for (const char* file : {"--tensorboard tb", "--scalars s.csv"}) {
    const Ran refused = run(std::string(kPlainRun) + "--steps 2 --output-dir b " + file);
    EXPECT_EQ(refused.code, 2) << refused.output;
    EXPECT_NE(refused.output.find("of another run"), std::string::npos) << refused.output;
  }
  EXPECT_EQ(bytes("s.csv"), before);
  const Ran over =
      run(std::string(kPlainRun) + "--steps 2 --output-dir b --overwrite --tensorboard tb --scalars s.csv");
  ASSERT_EQ(over.code, 0) << over.output;
  EXPECT_EQ(steps_of(events("tb").at("loss")), up_to(2));
  EXPECT_EQ(steps_of(table("s.csv").at("loss")), up_to(2));
}

TEST_F(ScalarFiles, AreWrittenUnderALauncher) {
  write("job.yaml",
        "ranks: 2\nmodel: mlp\nwidth: 16\nstages: 2\nsteps: 4\nthreads: 1\noutput-dir: out\ntensorboard: tb\n"
        "scalars: s.csv\n");
  const Ran ran = run("launch job.yaml");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(steps_of(events("tb").at("loss")), up_to(4));
  EXPECT_EQ(steps_of(table("s.csv").at("loss")), up_to(4));
}

TEST_F(ScalarFiles, OfAJobArrayNameTheJobs) {
  const Ran ran = run("train --model mlp --width 16 --fused --lr 0.1 0.01 --steps 3 --scalars s.csv");
  ASSERT_EQ(ran.code, 0) << ran.output;
  for (const char* name : {"loss.job0", "loss.job1", "lr.job1"})
    EXPECT_EQ(steps_of(table("s.csv")[name]), up_to(3)) << name;
}

TEST_F(ScalarFiles, AStoreOfMLflowHasTheRunsNumbers) {
  const Ran trained = run(std::string(kPlainRun) + "--steps 5 --output-dir out");
  ASSERT_EQ(trained.code, 0) << trained.output;
  ASSERT_EQ(run("trace convert out --to mlflow --out a").code, 0);
  std::string folder;
  for (const auto& entry : fs::directory_iterator(folder_ / "a/mlruns/0"))
    if (entry.is_directory()) folder = fs::relative(entry.path(), folder_).string();
  ASSERT_FALSE(folder.empty());
  const std::string meta = bytes(folder + "/meta.yaml");
  EXPECT_NE(meta.find("run_id: \"" + fs::path(folder).filename().string() + "\""), std::string::npos) << meta;
  EXPECT_NE(meta.find("status: 3\n"), std::string::npos) << meta;
  EXPECT_EQ(bytes(folder + "/params/model"), "mlp");
  const std::string log = bytes("out/steps.rank1.jsonl");
  std::int64_t step = 0;
  for (const std::string& line : split(bytes(folder + "/metrics/loss"), '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> words = split(line, ' ');
    ASSERT_EQ(words.size(), 3u) << line;
    EXPECT_NE(log.find("\"step\":" + words[2] + ",\"loss\":" + words[1]), std::string::npos) << line;
    EXPECT_EQ(number_of<std::int64_t>(words[2]), step++);
  }
  EXPECT_EQ(step, 5);
}

}  // namespace
}  // namespace millrace
