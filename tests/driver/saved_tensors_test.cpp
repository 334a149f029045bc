// Tensors of files, read without LibTorch: what PyTorch saved, what is refused of it, and how far apart two
// are.
#include "driver/checkpoint/saved_tensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <stdexcept>

#include "data/files/zip.h"
#include "driver/checkpoint/own_process.h"
#include "driver/checkpoint/pt_file.h"
#include "runtime/base/files.h"
#include "runtime/saved/wrapped_names.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

/// What tests/reference/state_dicts.py wrote with PyTorch 2.11 and safetensors 0.8.
std::string of_pytorch(const std::string& name) {
  return MILLRACE_SOURCE_DIR "/tests/driver/state_dicts/" + name;
}

std::string why(const Result<SavedTensors>& found) {
  return found ? "was read" : to_string(found.problems());
}

void expect_equal(const Result<SavedTensors>& ours, const SavedTensors& wanted) {
  ASSERT_TRUE(ours) << why(ours);
  EXPECT_EQ(ours->tensors.size(), wanted.tensors.size());
  for (const auto& [name, tensor] : wanted.tensors) {
    ASSERT_TRUE(ours->tensors.contains(name)) << name;
    const SavedTensor& own = ours->tensors.at(name);
    EXPECT_EQ(shape_text(own.shape), shape_text(tensor.shape)) << name;
    EXPECT_TRUE(own.elements == tensor.elements) << name;
  }
}

TEST(StateDicts, HoldTheTensorsThatSafetensorsHas) {
  const Result<SavedTensors> ours = open_saved_tensors(of_pytorch("types.pt"));
  const Result<SavedTensors> same = open_saved_tensors(of_pytorch("types.safetensors"));
  ASSERT_TRUE(ours) << to_string(ours.problems());
  ASSERT_TRUE(same) << to_string(same.problems());
  ASSERT_EQ(ours->tensors.size(), 18u);
  expect_equal(ours, *same);
  const Result<SavedTensors> legacy = open_saved_tensors(of_pytorch("legacy.pth"));
  expect_equal(legacy, *same);
  const Result<SavedTensors> ordered = open_saved_tensors(of_pytorch("ordered.pt"));
  ASSERT_TRUE(ordered) << to_string(ordered.problems());
  EXPECT_EQ(ordered->tensors.size(), 9u);
  const Result<SavedTensors> parameter = open_saved_tensors(of_pytorch("parameter.pt"));
  ASSERT_TRUE(parameter) << to_string(parameter.problems());
  EXPECT_EQ(shape_text(parameter->tensors.at("w").shape), "[2] F32");
}

TEST(StateDicts, OtherObjectsAreRefusedByName) {
  const auto refusal = [](const std::string& name) {
    const Result<SavedTensors> found = open_saved_tensors(of_pytorch(name));
    return found ? "was read" : to_string(found.problems());
  };
  EXPECT_NE(refusal("module.pt").find("torch.nn.modules.container Sequential, which is refused"),
            std::string::npos)
      << refusal("module.pt");
  EXPECT_NE(refusal("nested.pt").find("is no tensor"), std::string::npos) << refusal("nested.pt");
  EXPECT_NE(refusal("strided.pt").find("not contiguous"), std::string::npos) << refusal("strided.pt");
  EXPECT_NE(refusal("list.pt").find("holds no dict of tensors"), std::string::npos) << refusal("list.pt");
}

TEST(StateDicts, InDictsAreChosenByKey) {
  const Result<SavedTensors> wanted = open_saved_tensors(of_pytorch("trained.safetensors"));
  ASSERT_TRUE(wanted) << why(wanted);
  expect_equal(open_saved_tensors(of_pytorch("training.pt"), "model"), *wanted);
  expect_equal(open_saved_tensors(of_pytorch("dcp-nested"), "model"), *wanted);
  expect_equal(open_saved_tensors(of_pytorch("dcp-flat")), *wanted);
  const Result<SavedTensors> deeper = open_saved_tensors(of_pytorch("training.pt"), "ema/weights");
  ASSERT_TRUE(deeper) << why(deeper);
  EXPECT_EQ(shape_text(deeper->tensors.at("w").shape), "[2] F32");
  const Result<SavedTensors> state = open_saved_tensors(of_pytorch("dcp-nested"), "optimizer/state");
  ASSERT_TRUE(state) << why(state);
  EXPECT_TRUE(state->tensors.contains("0.momentum_buffer"));

  const auto refusal = [](const std::string& name, const std::string& key) {
    return why(open_saved_tensors(of_pytorch(name), key));
  };
  EXPECT_NE(refusal("nested.pt", "").find("state_dict (9)"), std::string::npos) << refusal("nested.pt", "");
  for (const std::string name : {"training.pt", "dcp-nested"}) {
    EXPECT_NE(refusal(name, "weights").find("weights; dicts of tensors in it:"), std::string::npos)
        << refusal(name, "weights");
    EXPECT_NE(refusal(name, "weights").find("model (9)"), std::string::npos) << refusal(name, "weights");
  }
  EXPECT_NE(refusal("training.pt", "").find("argparse Namespace, which is refused"), std::string::npos)
      << "without a key the file is to be a state_dict";
  EXPECT_NE(refusal("training.pt", "").find("--key model"), std::string::npos);
  EXPECT_NE(refusal("dcp-nested", "").find("--key model"), std::string::npos) << refusal("dcp-nested", "");
  EXPECT_NE(refusal("training.pt", "optimizer").find("is no tensor"), std::string::npos);
  EXPECT_NE(refusal("types.safetensors", "model").find("leave --key out"), std::string::npos);
}

TEST(DcpFolders, PutPiecesTogether) {
  const Result<SavedTensors> found = open_saved_tensors(of_pytorch("dcp-sharded"), "model");
  ASSERT_TRUE(found) << why(found);
  ASSERT_EQ(found->tensors.size(), 4u);
  for (const auto& [name, tensor] : found->tensors) {
    if (name == "cube") {
      EXPECT_EQ(shape_text(tensor.shape), "[3, 4, 5] I64");
      for (std::int64_t i = 0; i < 60; ++i) {
        std::int64_t value = 0;
        std::memcpy(&value, tensor.elements.data() + i * 8, 8);
        EXPECT_EQ(value, i);
      }
      continue;
    }
    EXPECT_EQ(shape_text(tensor.shape), "[5, 7] F32") << name;
    for (int i = 0; i < 35; ++i) {
      float value = 0;
      std::memcpy(&value, tensor.elements.data() + i * 4, 4);
      EXPECT_EQ(value, static_cast<float>(name == "whole" ? i + 1 : i)) << name;
    }
  }
}

/// Damaged metadata and pieces are refused or read, and nothing outside the folder is.
TEST(DcpFolders, DamageDoesNoHarm) {
  const TemporaryFolder folder;
  const std::string copy = folder.path("dcp");
  std::filesystem::copy(of_pytorch("dcp-sharded"), copy);
  const std::string metadata = *read_file(copy + "/.metadata"), shard = *read_file(copy + "/__1_0.distcp");
  const auto with = [&](const std::string& file, const std::string& content) {
    EXPECT_TRUE(write_file_atomically(copy + "/" + file, content));
    return why(open_saved_tensors(copy, "model"));
  };
  const auto changed = [](std::string text, const std::string& from, const std::string& to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    return text;
  };
  EXPECT_EQ(with(".metadata", metadata), "was read");
  EXPECT_NE(with(".metadata", changed(metadata, "__1_0.distcp", "../_0.distcp")).find("may lie elsewhere"),
            std::string::npos);
  EXPECT_NE(with(".metadata", changed(metadata, "__1_0.distcp", "__2_0.distcp")).find("__2_0.distcp"),
            std::string::npos);
  EXPECT_NE(with(".metadata", changed(metadata, "__1_0.distcp", "__0_0.distcp")), "was read");
  EXPECT_NE(with(".metadata", changed(metadata, "Metadata", "Metadatb")).find("not of torch"),
            std::string::npos);
  with(".metadata", metadata);
  EXPECT_NE(with("__1_0.distcp", shard.substr(0, shard.size() / 2)), "was read");
  with("__1_0.distcp", shard);
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 100; ++i) {
    std::string damaged = metadata;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    if (with(".metadata", damaged) != "was read") ++refused;
  }
  EXPECT_GT(refused, 30);
}

/// The archive with another pickle, whose check sum is right.
void write_with_pickle(const std::string& archive, const std::string& pickle, const std::string& path) {
  const Result<std::vector<ZipMember>> members = parse_zip(archive, "archive");
  ASSERT_TRUE(members);
  FileWriter out(path);
  ZipWriter zip(out);
  for (const ZipMember& member : *members) {
    std::string unpacked;
    const Result<std::string_view> content = zip_member(archive, member, unpacked, "archive");
    ASSERT_TRUE(content);
    zip.begin(member.name, ZipWriter::Packing::Stored);
    zip.write(member.name.ends_with("data.pkl") ? std::string_view(pickle) : *content);
    zip.end();
  }
  zip.finish();
  out.commit();
}

/// Damaged files are read or refused. Under the sanitizers this also shows that nothing else is touched.
TEST(StateDicts, DamagedFilesDoNoHarm) {
  const TemporaryFolder folder;
  const std::string whole = *read_file(of_pytorch("types.pt")), path = folder.path("damaged.pt");
  const Result<std::vector<ZipMember>> members = parse_zip(whole, "types.pt");
  ASSERT_TRUE(members);
  const auto member =
      std::ranges::find_if(*members, [](const ZipMember& one) { return one.name.ends_with("data.pkl"); });
  const std::string pickle = whole.substr(member->data_offset, member->bytes);
  std::mt19937 random(5);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string damaged = i % 3 == 0 ? whole : pickle;
    if (i % 5 == 0)
      damaged.resize(random() % damaged.size());
    else
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (i % 3 == 0) {
      ASSERT_TRUE(write_file_atomically(path, damaged));
    } else {
      write_with_pickle(whole, damaged, path);
    }
    const std::string bytes = *read_file(path);
    if (!tensors_in(bytes, path, "")) ++refused;  // in this process, where sanitizers see it
  }
  EXPECT_GT(refused, 300);
  const std::string legacy = *read_file(of_pytorch("legacy.pth"));
  for (int i = 0; i < 600; ++i) {
    std::string damaged = legacy;
    if (i % 5 == 0)
      damaged.resize(random() % damaged.size());
    else
      damaged[random() % damaged.size()] = static_cast<char>(random());
    const Result<SavedTensors> found = tensors_in(damaged, path, "");
    if (!found) continue;
    for (const auto& [name, tensor] : found->tensors)
      EXPECT_LE(tensor.elements.size(), damaged.size()) << name;
  }
  // Values that nest deeper than any stack, and more of them than are taken.
  write_with_pickle(whole, "\x80\x02)" + std::string(1'000'000, '\x85') + ".", path);
  EXPECT_FALSE(open_saved_tensors(path));
  write_with_pickle(whole, "\x80\x02(" + std::string(3'000'000, '}') + "t.", path);
  EXPECT_NE(to_string(open_saved_tensors(path).problems()).find("more than 2000000 values"),
            std::string::npos);
}

/// State_dicts of PyTorch until 0.3 have tensors of another function, and weights as objects of Parameter.
TEST(StateDicts, OfTheFirstPyTorchsAreRead) {
  const TemporaryFolder folder;
  std::string old = *read_file(of_pytorch("legacy.pth"));
  const std::string now = "_rebuild_tensor_v2", before = "_rebuild_tensor";
  ASSERT_NE(old.find(now), std::string::npos);
  for (std::size_t at; (at = old.find(now)) != std::string::npos;) old.replace(at, now.size(), before);
  expect_equal(open_saved_tensors(folder.write("old.pth", old)),
               *open_saved_tensors(of_pytorch("types.safetensors")));
}

/// The hint of a file that `import` reads names import; that of any other pickle does not.
TEST(StateDicts, AHintIsNotTheCommandThatFailed) {
  const TemporaryFolder folder;
  const auto hint = [](const std::string& path) {
    const Result<TensorFile> file = TensorFile::open(path);
    return file ? "" : file.problems().front().hint;
  };
  for (const char* name : {"types.pt", "legacy.pth"})
    EXPECT_NE(hint(of_pytorch(name)).find("checkpoint import"), std::string::npos) << name;
  const std::string pickle =
      folder.write("other.pkl", std::string("\x80\x04}\x94.", 5) + std::string(20, ' '));
  EXPECT_EQ(hint(pickle).find("checkpoint import"), std::string::npos) << hint(pickle);
  EXPECT_NE(hint(pickle).find("torch.load"), std::string::npos) << hint(pickle);
}

TEST(Unwrapping, LeavesTheNamesThatTheModelHas) {
  struct Case {
    std::vector<std::string> names, plain;
    std::string found;
  };
  for (const Case& one :
       std::vector<Case>{{{"a.weight", "b.bias"}, {"a.weight", "b.bias"}, ""},
                         {{"module.a.weight", "module.b.bias"}, {"a.weight", "b.bias"}, "module."},
                         {{"model.a.weight", "model.b.bias"}, {"a.weight", "b.bias"}, "model."},
                         {{"_orig_mod.a.weight", "_orig_mod.b.bias"}, {"a.weight", "b.bias"}, "_orig_mod."},
                         {{"_orig_mod.module.a.w", "_orig_mod.module.b"}, {"a.w", "b"}, "_orig_mod. module."},
                         {{"module._orig_mod.model.a", "module._orig_mod.model.b"},
                          {"a", "b"},
                          "_orig_mod. module. model."},
                         {{"a._orig_mod.0.weight", "b.weight"}, {"a.0.weight", "b.weight"}, "_orig_mod."},
                         {{"a._fsdp_wrapped_module.w", "b.w"}, {"a.w", "b.w"}, "_fsdp_wrapped_module."},
                         {{"module.a.w", "n_averaged", "rule/momentum/x"},
                          {"a.w", "n_averaged", "rule/momentum/x"},
                          "module."},
                         {{"module.a.w", "other.w"}, {"module.a.w", "other.w"}, ""},
                         {{"my_orig_mod.a", "b"}, {"my_orig_mod.a", "b"}, ""},
                         {{}, {}, ""}}) {
    const Unwrapping unwrap(one.names);
    for (std::size_t i = 0; i < one.names.size(); ++i) EXPECT_EQ(unwrap(one.names[i]), one.plain[i]);
    EXPECT_EQ(unwrap.found(), one.found);
  }
}

/// A pickle of 1 MiB that asks for 2.4 GB: a text names a class with itself, again and again.
TEST(StateDicts, APickleDoesNotFillTheMemory) {
  const TemporaryFolder folder;
  const std::string whole = *read_file(of_pytorch("types.pt")), path = folder.path("bomb.pt");
  std::string pickle("\x80\x02X\x00\x00\x10\x00", 7);
  pickle += std::string(std::size_t{1} << 20, 'a') + std::string("q\x00", 2);
  for (int i = 0; i < 1200; ++i) pickle += std::string("h\x00h\x00\x93", 5);
  write_with_pickle(whole, pickle + ".", path);
  const std::string refusal = why(open_saved_tensors(path, "model"));
  EXPECT_NE(refusal.find("bomb.pt (data.pkl): repeats texts, to more than"), std::string::npos)
      << refusal.substr(0, 1000);
}

TEST(OwnProcess, GivesItsAnswerAndKeepsItsFaults) {
  const auto answer = [](const std::function<std::string()>& work, const ProcessLimits& limits = {}) {
    const Result<std::string> found = in_own_process(work, limits, "it");
    return found ? *found : to_string(found.problems());
  };
  EXPECT_EQ(answer([] { return std::string(1'000'000, 'x'); }), std::string(1'000'000, 'x'));
  EXPECT_EQ(answer([] { return std::string(::open("/dev/null", O_RDONLY) < 0 ? "refused" : "opened"); }),
            "refused");
  EXPECT_NE(answer([]() -> std::string { return ::kill(::getpid(), SIGKILL), ""; }).find("by signal 9"),
            std::string::npos);
  EXPECT_NE(answer([]() -> std::string { throw std::runtime_error("no"); }).find("ended the process"),
            std::string::npos);
  const std::string full = answer([] { return std::string(std::size_t{2} << 30, 'x'); }).substr(0, 1000);
  EXPECT_TRUE(full.find("it: needs more than 768 MiB of memory to be read") != std::string::npos ||
              full.find("it: ended the process") != std::string::npos)  // as a sanitizer's allocator does
      << full;
  EXPECT_NE(answer([]() -> std::string { return ::pause(), ""; }, {.deadline = std::chrono::milliseconds(50)})
                .find("was not read within 0.05 s"),
            std::string::npos);
  EXPECT_NE(answer([] { return std::string(2 * kMiB, 'x'); }, {.answer = kMiB}).find("more than 1 MiB"),
            std::string::npos);
}

SavedTensor floats(const std::vector<float>& values) {
  return {{"w", ElementType::F32, {static_cast<std::int64_t>(values.size())}},
          {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}};
}

TEST(TensorDifferences, AreThoseOfTheNumbers) {
  const std::vector<float> a{3, 4, 0, 0}, b{3, 4, 0.5, 0}, zero{0, 0, 0, 0}, minus{0, -0.F, 0, 0},
      nan{3, NAN, 0, 9};
  EXPECT_EQ(difference_of(floats(a), floats(a)).different, 0);
  const TensorDifference one = difference_of(floats(a), floats(b));
  EXPECT_EQ(one.elements, 4);
  EXPECT_EQ(one.different, 1);
  EXPECT_EQ(one.largest, 0.5);
  EXPECT_EQ(one.relative, 0.1);
  EXPECT_EQ(difference_of(floats(zero), floats(minus)).different, 1) << "other bits";
  EXPECT_EQ(difference_of(floats(zero), floats(minus)).relative, 0);
  EXPECT_TRUE(std::isinf(difference_of(floats(zero), floats(a)).relative));
  EXPECT_TRUE(std::isnan(difference_of(floats(a), floats(nan)).largest));
  // The same numbers in other types: -2, -1, 0, 1, 2 beside 0, 0, 0, 0, 0.
  const Result<SavedTensors> types = open_saved_tensors(of_pytorch("types.safetensors"));
  ASSERT_TRUE(types);
  for (const char* name : {"float64", "float16", "bfloat16", "int32", "int16", "int8"}) {
    const SavedTensor& tensor = types->tensors.at(name);
    const std::string zeros(tensor.elements.size(), '\0');
    EXPECT_EQ(difference_of(tensor, {tensor.shape, zeros}).largest, 2) << name;
    EXPECT_EQ(difference_of(tensor, {tensor.shape, zeros}).relative, 1) << name;
  }
}

}  // namespace
}  // namespace millrace
