// Archives that are damaged, of another version or of models that cannot be taken: every one is refused with
// a place, what was found and what to do.
#include <functional>
#include <map>

#include "data/files/file_writer.h"
#include "models/archive/exported_program.h"
#include "models/exported/exported_model.h"
#include "runtime/model/stage_layout.h"
#include "tests/exported/archives.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

TEST(SizeExpression, ComputesWhatSympyWrites) {
  const SymbolValues symbols{{"s0", 7}, {"s1", 3}};
  const std::pair<const char*, std::int64_t> cases[] = {
      {"Integer(5)", 5},
      {"-4", -4},
      {"Symbol('s0', positive=True, integer=True)", 7},
      {"Mul(Integer(2), Symbol('s0', positive=True, integer=True))", 14},
      {"Add(Mul(Integer(-1), Symbol('s1', integer=True)), Pow(Symbol('s0'), Integer(2)), Integer(1))", 47},
      {"torch.utils._sympy.functions.FloorDiv(Add(Symbol('s0'), Integer(-8)), Integer(2))", -1},
      {"Mod(Symbol('s0'), Symbol('s1'))", 1},
      {"PythonMod(Integer(-7), Integer(3))", 2},
      {"Max(Symbol('s0'), Symbol('s1'), Integer(5))", 7}};
  for (const auto& [text, expected] : cases) {
    const auto parsed = SizeExpression::parse(text, "test");
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->value(symbols), expected) << text;
    EXPECT_FALSE(parsed->text().empty());
  }
  EXPECT_EQ(SizeExpression::parse("Symbol('s9')", "test")->value(symbols), std::nullopt);
  EXPECT_EQ(SizeExpression::parse("FloorDiv(Integer(1), Integer(0))", "test")->value(symbols), std::nullopt);
  EXPECT_EQ(SizeExpression::parse("Pow(Symbol('s0'), Integer(62))", "test")->value(symbols), std::nullopt);
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "Add(";
  for (const char* text : {"", "Add(", "Symbol()", "Symbol('')", "Sin(Integer(1))", "Integer(1) Integer(2)",
                           "Mul(Integer(99999999999999999999))", deep.c_str()})
    EXPECT_FALSE(SizeExpression::parse(text, "test")) << text;
}

class HostileArchives : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-archives-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string bytes_of(const std::string& name) {
    const auto bytes = read_file(folder_with(name) / (name + ".pt2"), kGiB);
    return bytes ? *bytes : "";
  }

  /// The archive with members changed by `change` (name, content -> keep it?).
  std::string changed(const std::string& from,
                      const std::function<bool(const std::string& name, std::string& content)>& change) {
    const std::string bytes = bytes_of(from);
    const auto members = parse_zip(bytes, from);
    EXPECT_TRUE(members);
    const fs::path path = folder_ / "changed.pt2";
    FileWriter file(path);
    ZipWriter zip(file);
    for (const ZipMember& m : *members) {
      std::string unpacked;
      std::string content(*zip_member(bytes, m, unpacked, from));
      if (!change(m.name, content)) continue;
      zip.begin(m.name, ZipWriter::Packing::Stored);
      zip.write(content);
      zip.end();
    }
    zip.finish();
    file.commit();
    return path.string();
  }

  std::string with_text(const std::string& from, const std::string& member, const std::string& old,
                        const std::string& text) {
    bool found = false;
    const std::string path = changed(from, [&](const std::string& name, std::string& content) {
      if (!name.ends_with(member)) return true;
      for (std::size_t at = content.find(old); at != std::string::npos;
           at = content.find(old, at + text.size())) {
        content.replace(at, old.size(), text);
        found = true;
      }
      return true;
    });
    EXPECT_TRUE(found) << old;
    return path;
  }

  static void expect_refused(const std::string& path, const std::vector<std::string>& words) {
    const auto model = make_exported_model(path);
    ASSERT_FALSE(model);
    const std::string text = to_string(model.problems());
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  }

  fs::path folder_;
};

TEST_F(HostileArchives, FilesThatAreNoneAreRefused) {
  expect_refused((folder_ / "absent.pt2").string(), {"absent.pt2", "No such file"});
  expect_refused(folder_.string(), {"is no regular file"});
  ASSERT_TRUE(write_file_atomically(folder_ / "empty.pt2", ""));
  expect_refused((folder_ / "empty.pt2").string(), {"is empty"});
  ASSERT_TRUE(
      write_file_atomically(folder_ / "text.pt2", "not a zip archive, but long enough to look for its end"));
  expect_refused((folder_ / "text.pt2").string(), {"no readable zip archive", "torch.export.save"});
}

TEST_F(HostileArchives, CutOffFilesAreRefused) {
  MILLRACE_NEEDS_REFERENCE();
  const std::string bytes = bytes_of("mlp");
  for (std::size_t parts = 0; parts < 64; ++parts) {
    const std::size_t size = bytes.size() * parts / 64;
    const auto archive = ExportedArchive::parse(std::string_view(bytes).substr(0, size), "cut");
    EXPECT_FALSE(archive) << size;
  }
}

TEST_F(HostileArchives, OtherVersionsAreNamed) {
  MILLRACE_NEEDS_REFERENCE();
  expect_refused(with_text("mlp", "model.json", "\"schema_version\": {\"major\": 8",
                           "\"schema_version\": {\"major\": 11"),
                 {"schema 11.", "torch 2.", "reads schema 8", "torch 2.11"});
}

TEST_F(HostileArchives, UnknownCallsAreNamed) {
  MILLRACE_NEEDS_REFERENCE();
  expect_refused(
      with_text("mlp", "model.json", "torch.ops.aten.gelu.default", "torch.ops.mylib.gelu.default"),
      {"call gelu", "torch.ops.mylib.gelu.default", "no operator of ATen"});
  expect_refused(with_text("mlp", "model.json", "torch.ops.aten.tanh.default", "torch.ops.aten.tahn.default"),
                 {"call tanh", "torch.ops.aten.tahn.default", "not known"});
  expect_refused(with_text("mlp", "model.json", "{\"name\": \"normalized_shape\"", "{\"name\": \"shape\""),
                 {"layer_norm", "does not take"});
}

TEST_F(HostileArchives, MissingArgumentsAreNamed) {
  MILLRACE_NEEDS_REFERENCE();
  // A convolution, a linear map and an embedding look at their arguments beyond passing them on.
  expect_refused(with_text("resnet18", "model.json", "{\"name\": \"input\"", "{\"name\": \"inptu\""),
                 {"conv2d", "lacks the argument input (Tensor)"});
  for (const char* name : {"input", "weight", "self", "mat2", "indices", "stride", "p", "training"}) {
    for (const char* model : {"mlp_dropout", "corners", "lstm", "gpt2"}) {
      const std::string from = "{\"name\": \"" + std::string(name) + "\"";
      const std::string path = changed(model, [&](const std::string& member, std::string& content) {
        if (!member.ends_with("model.json")) return true;
        for (std::size_t at = content.find(from); at != std::string::npos; at = content.find(from, at + 1))
          content[at + from.size() - 2] = '_';
        return true;
      });
      (void)make_exported_model(path);  // refused or, without such an argument, taken
    }
  }
}

TEST_F(HostileArchives, WhatWouldNotTrainIsNamed) {
  MILLRACE_NEEDS_REFERENCE();
  expect_refused((folder_with("clamped") / "clamped.pt2").string(),
                 {"aten::clamp_", "writes to a.weight, which is a parameter", "weight.clamp(-c, c)"});
  expect_refused((folder_with("complex_parameter") / "complex_parameter.pt2").string(),
                 {"parameter filter is of complex64", "view_as_real"});
}

TEST_F(HostileArchives, OtherDevicesAreNamed) {
  MILLRACE_NEEDS_REFERENCE();
  expect_refused(with_text("bert", "model.json", "\"as_device\": {\"type\": \"cpu\"",
                           "\"as_device\": {\"type\": \"xpu\""),
                 {"call ", "computes on the device xpu"});
  // A GPU's archive computes wherever it is run.
  const std::string gpu =
      with_text("bert", "model.json", "\"as_device\": {\"type\": \"cpu\", \"index\": null",
                "\"as_device\": {\"type\": \"cuda\", \"index\": 0");
  EXPECT_TRUE(make_exported_model(gpu));
}

TEST_F(HostileArchives, WeightsThatAreMissingOrShortAreNamed) {
  MILLRACE_NEEDS_REFERENCE();
  expect_refused(
      changed("mlp", [](const std::string& name, std::string&) { return !name.ends_with("/weight_0"); }),
      {"layers.0.weight", "weight_0", "not there"});
  expect_refused(changed("mlp",
                         [](const std::string& name, std::string& content) {
                           if (name.ends_with("/weight_0")) content.resize(content.size() - 4);
                           return true;
                         }),
                 {"layers.0.weight", "does not fit"});
  expect_refused(with_text("mlp", "model_weights_config.json", "\"layers.0.weight\"", "\"layers.9.weight\""),
                 {"no values of layers.0.weight"});
}

TEST_F(HostileArchives, AFrozenBatchSaysHowToExport) {
  MILLRACE_NEEDS_REFERENCE();
  const auto model = make_exported_model((folder_with("frozen_batch") / "frozen_batch.pt2").string());
  ASSERT_TRUE(model) << to_string(model.problems());
  const Plan plan = uniform_plan(model->name, model->layer_names(), 1, 1, 1, ScheduleKind::OneFOneB);
  EXPECT_TRUE(make_layout(*model, plan, 6));
  const auto other = make_layout(*model, plan, 8);
  ASSERT_FALSE(other);
  const std::string text = to_string(other.problems());
  for (const char* word : {"[8, 12]", "[6, 12]", "dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, )"})
    EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST_F(HostileArchives, HeadsAndGranularityAreChecked) {
  MILLRACE_NEEDS_REFERENCE();
  const std::string mlp = (folder_with("mlp") / "mlp.pt2").string();
  for (const ExportedOptions& options :
       {ExportedOptions{.head = "loss"}, ExportedOptions{.head = "dice"},
        ExportedOptions{.granularity = "fine"}, ExportedOptions{.granularity = "-1"}})
    EXPECT_FALSE(make_exported_model(mlp, options)) << options.head << " " << options.granularity;
  EXPECT_TRUE(make_exported_model(mlp, {.head = "mean-squared-error"}));
}

}  // namespace
}  // namespace millrace
