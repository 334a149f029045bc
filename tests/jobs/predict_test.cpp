// `millrace predict` on what really trained: images and arrays, by its three formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "data/files/npy.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Predict : public Jobs {
 protected:
  /// Writes float32 values [rows, columns] as numpy.save does.
  void write_array(const std::string& name, const std::vector<std::int64_t>& shape,
                   const std::vector<float>& values) {
    std::string file = npy_header("<f4", shape);
    file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    write(name, file);
  }
  /// The JSON that a command prints, which stands behind what it logs.
  Json json_of(const std::string& arguments) {
    const Ran ran = run(arguments);
    const std::size_t begin = ran.output.find('{');
    const auto found = parse_json(ran.output.substr(std::min(begin, ran.output.size())), arguments);
    EXPECT_TRUE(found) << ran.output;
    return found ? *found : Json();
  }
  std::vector<std::string> lines_of(const std::string& text) { return words_of(text, '\n'); }
};

TEST_F(Predict, OfTheTestImagesIsWhatTheEvaluationCounted) {
  const std::string model = "--model squeezenet1_1 --image-size 48 --classes 3 ";
  ASSERT_EQ(run("data generate --workload images --out images --size 200kB --classes 3 --image-side 48").code,
            0);
  const Ran trained = run("train " + model +
                          "--data images --epochs 2 --lr 0.01 --output-dir run --save-weights w.safetensors");
  ASSERT_EQ(trained.code, 0) << trained.output;
  const Json judged = json_of("evaluate " + model + "--data images --weights run --format json");
  const Json& evaluation = judged.find("evaluations")->items().front();
  const double samples = evaluation.find("samples")->as_double(), top1 = evaluation.find("top1")->as_double();
  for (const char* weights : {"--weights run ", "--weights w.safetensors "}) {
    const Ran ran =
        run("predict " + model + weights + "--class-names images --top-k 1 --format csv images/val");
    ASSERT_EQ(ran.code, 0) << ran.output;
    const std::vector<std::string> rows = lines_of(ran.output);
    ASSERT_EQ(rows.front(), "input,rank,class,name,probability");
    EXPECT_EQ(static_cast<double>(rows.size() - 1), samples);
    // The class's folder is the label, and its name the prediction.
    const auto right = std::ranges::count_if(rows, [](const std::string& row) {
      const std::vector<std::string> columns = split(row, ',');
      return columns[0].find("/" + columns[3] + "/") != std::string::npos;
    });
    EXPECT_EQ(static_cast<double>(right), top1 * samples);
  }
  // Batches and threads that load change nothing but the speed, and a file alone is the file among others.
  const auto json = [&](const std::string& rest) {
    return *json_of("predict " + model + "--weights run --format json " + rest).find("predictions");
  };
  const Json all = json("images/val"), again = json("--workers 2 images/val");
  EXPECT_EQ(all.dump(), again.dump());
  EXPECT_EQ(all.dump(), json("--label-smoothing 0.1 images/val").dump()) << "it classifies all the same";
  EXPECT_EQ(static_cast<double>(all.size()), samples);
  EXPECT_EQ(all.items().front().find("top")->size(), 3u);
  double sum = 0;
  for (const Json& one : all.items().front().find("top")->items())
    sum += one.find("probability")->as_double();
  EXPECT_NEAR(sum, 1, 1e-5);

  write("cut.jpg", bytes(all.items().front().find("input")->as_string()).substr(0, 200));
  const Ran damaged = run("predict " + model + "--weights run cut.jpg");
  EXPECT_EQ(damaged.code, 3) << damaged.output;
  EXPECT_NE(damaged.output.find("cut.jpg: "), std::string::npos) << damaged.output;
  write("images/val/notes.txt", "");
  const Ran noted = run("predict " + model + "--weights run images/val");
  EXPECT_NE(noted.output.find("left out: 1 files that are not images: images/val/notes.txt"),
            std::string::npos)
      << noted.output;
  write("names", "one\ntwo\nthree\nfour\n");
  const Ran many = run("predict " + model + "--weights run --class-names names images/val");
  EXPECT_EQ(many.code, 3);
  EXPECT_NE(many.output.find("has 4 names, the model has 3 classes"), std::string::npos) << many.output;
}

TEST_F(Predict, OfArraysShowsEachRowAndRefusesWhatDoesNotFit) {
  const std::string model = "--model mlp --width 16 --classes 4 ";
  const Ran trained = run("train " + model + "--steps 4 --output-dir run --checkpoint-at-end");
  ASSERT_EQ(trained.code, 0) << trained.output;
  const auto inputs = static_cast<std::int64_t>(16);
  std::vector<float> values(3 * inputs);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) / 17;
  write_array("x.npy", {3, inputs}, values);
  write_array("one.npy", {inputs}, {values.begin(), values.begin() + inputs});
  write("names", "zero\none\ntwo, too\n");
  const std::string predict = "predict " + model + "--weights run ";
  const Ran ran = run(predict + "--class-names names --outputs o.npy --top-k 9 x.npy one.npy");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const std::vector<std::string> rows = lines_of(ran.output);
  ASSERT_EQ(rows.size(), 4u) << ran.output;
  EXPECT_EQ(rows[0].substr(0, 10), "x.npy[0]  ");
  EXPECT_EQ(rows[3].substr(7), rows[0].substr(8)) << "the same numbers";
  for (const char* name : {"zero ", "one ", "two, too ", "class 3 "})
    EXPECT_NE(rows[0].find(name), std::string::npos) << rows[0];
  const auto outputs = parse_npy(bytes("o.npy"), "o.npy");
  ASSERT_TRUE(outputs);
  EXPECT_EQ(outputs->shape, (std::vector<std::int64_t>{4, 4}));
  const Ran quoted = run(predict + "--class-names names --format csv --top-k 4 one.npy");
  EXPECT_NE(quoted.output.find(",2,\"two, too\","), std::string::npos) << quoted.output;

  write_array("short.npy", {2, 3}, {1, 2, 3, 4, 5, 6});
  const Ran other = run(predict + "x.npy short.npy");
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.output.find("short.npy: is [2, 3], the model reads [N, 16]"), std::string::npos)
      << other.output;
  values[inputs] = std::numeric_limits<float>::quiet_NaN();
  write_array("nan.npy", {3, inputs}, values);
  const Ran nan = run(predict + "nan.npy");
  EXPECT_EQ(nan.code, 6) << nan.output;
  EXPECT_NE(nan.output.find("nan.npy[1]: "), std::string::npos) << nan.output;
  write("x.txt", "text");
  EXPECT_EQ(run(predict + "x.txt").code, 3);
  EXPECT_EQ(run(predict + "absent.npy").code, 3);
  EXPECT_EQ(run(predict + "--top-k 0 x.npy").code, 2);
  const Ran misspelt = run(predict + "--topk 2 x.npy");
  EXPECT_NE(misspelt.output.find("did you mean --top-k?"), std::string::npos) << misspelt.output;
  EXPECT_EQ(run(predict).code, 2);
  EXPECT_EQ(run("predict --model mlp --width 32 --classes 4 --weights run x.npy").code, 4);
  EXPECT_EQ(run("predict " + model + "--weights nowhere x.npy").code, 4);
}

}  // namespace
}  // namespace millrace
