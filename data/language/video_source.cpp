#include "data/language/video_source.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "data/files/npy.h"
#include "data/readers/array_file.h"
#include "data/text/hash.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/lfs_pointer.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kMostBytes = 4 * kGiB;
constexpr std::size_t kMostProblems = 10;

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t side : shape) text += (text.empty() ? "" : ", ") + std::to_string(side);
  return "[" + text + "]";
}

/// Returns a Problem if the shape is not [frames, `features`] with at least one frame.
std::optional<Problem> shape_problem(const std::string& path, const std::vector<std::int64_t>& shape,
                                     std::int64_t features) {
  const std::string expected = "[frames, " + std::to_string(features) + "]";
  if (shape.size() != 2)
    return Problem{path, "has shape " + text_of(shape) + ", expected " + expected,
                   "save one array a video, a row a frame"};
  if (shape[1] != features)
    return Problem{path, "has shape " + text_of(shape) + ", expected " + expected,
                   "give --frame-features " + std::to_string(shape[1]) + " if all files are like this one"};
  if (shape[0] == 0) return Problem{path, "has shape " + text_of(shape) + ": no frame", {}};
  return std::nullopt;
}

/// Returns the number of frames of a file from its header, and checks the file's size.
Result<std::int64_t> frames_in(const VideoFile& file, std::int64_t features) {
  constexpr std::size_t kHeader = (1 << 16) + 12;  // bytes of the longest header
  std::error_code error;
  if (!fs::is_regular_file(file.path, error))
    return Problem{file.mentioned, "names a video without features: there is no file " + file.path,
                   "a video's name is that of its file, without .npy"};
  const auto size = static_cast<Bytes>(fs::file_size(file.path, error));
  std::ifstream in(file.path, std::ios::binary);
  std::string head(kHeader, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(in.gcount());
  if (std::optional<Problem> pointer = lfs_pointer(file.path, head)) return *std::move(pointer);
  const Result<NpyHeader> header = parse_npy_header(head, file.path);
  if (!header) return header.problems();
  if (const auto problem = shape_problem(file.path, header->shape, features)) return *problem;
  if (header->descr.find('f') == std::string::npos)
    return Problem{file.path, "holds numbers of type " + header->descr + ", expected floating ones", {}};
  const Bytes data = size - static_cast<Bytes>(header->data_offset);
  if (data != header->data_bytes)
    return Problem{file.path,
                   "holds " + std::to_string(data) + " bytes of data, its header says " +
                       std::to_string(header->data_bytes) + " (shape " + text_of(header->shape) + ")",
                   "the file is damaged: make it again"};
  return header->shape[0];
}

class FilesOfFeatures final : public VideoSource {
 public:
  FilesOfFeatures(std::vector<VideoFile> files, std::vector<std::int64_t> frames, std::int64_t features)
      : files_(std::move(files)), frames_(std::move(frames)), features_(features) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  std::int64_t num_frames(std::int64_t video) const override { return frames_[video]; }
  at::Tensor read(std::int64_t video, std::int64_t frames) const override {
    const std::string path = name_of(video);
    const std::string bytes = value_or_throw(read_regular_file(path, kMostBytes));
    const at::Tensor all = value_or_throw(npy_tensor(bytes, path));
    if (const auto problem = shape_problem(path, all.sizes().vec(), features_))
      throw DataError(path + " " + problem->what, problem->hint);
    if (all.size(0) < frames)
      throw DataError(path + " has " + std::to_string(all.size(0)) + " frames, when the run began it had " +
                      std::to_string(num_frames(video)));
    return all.narrow(0, 0, frames).to(at::TensorOptions(at::kFloat), false, /*copy=*/true);
  }
  std::string name_of(std::int64_t video) const override { return files_[video].path; }
  std::string describe() const override {
    return std::to_string(size()) + " videos in " + fs::path(files_.front().path).parent_path().string();
  }
  std::string fingerprint() const override {
    std::string listing;
    for (std::size_t i = 0; i < files_.size(); ++i)
      listing += fs::path(files_[i].path).filename().string() + " " + std::to_string(frames_[i]) + "\n";
    return std::to_string(size()) + " videos " + xxh3_128(std::string_view(listing)).hex();
  }

 private:
  template <class T>
  static T value_or_throw(Result<T> result) {
    if (!result) throw DataError(to_string(result.problems()));
    return *std::move(result);
  }
  std::vector<VideoFile> files_;
  std::vector<std::int64_t> frames_;
  std::int64_t features_;
};

class MadeUpPictures final : public VideoSource {
 public:
  explicit MadeUpPictures(const MadeUpVideos& options) : o_(options) {}
  std::int64_t size() const override { return o_.videos; }
  std::int64_t num_frames(std::int64_t video) const override {
    return o_.shortest + static_cast<std::int64_t>(seed_of(video) %
                                                   static_cast<std::uint64_t>(o_.longest - o_.shortest + 1));
  }
  at::Tensor read(std::int64_t video, std::int64_t frames) const override {
    auto generator = at::detail::createCPUGenerator(seed_of(video));
    const at::Tensor picture = at::empty({1, o_.features}, at::kFloat).normal_(0, 1, generator);
    return at::empty({frames, o_.features}, at::kFloat).normal_(0, kNoise, generator).add_(picture);
  }
  std::string describe() const override { return "made-up videos of " + frames_text() + " frames"; }
  std::string fingerprint() const override {
    return std::to_string(o_.videos) + " " + describe() + " of " + std::to_string(o_.features) +
           " features, seed " + std::to_string(o_.seed);
  }

 private:
  static constexpr double kNoise = 0.3;
  std::uint64_t seed_of(std::int64_t video) const {
    return derive_seed(o_.seed, "video", static_cast<std::uint64_t>(video));
  }
  std::string frames_text() const {
    return std::to_string(o_.shortest) + " to " + std::to_string(o_.longest);
  }
  MadeUpVideos o_;
};

}  // namespace

Result<VideoSourcePtr> videos_in_files(const std::vector<VideoFile>& files, std::int64_t features) {
  Problems problems;
  std::vector<std::int64_t> frames;
  for (const VideoFile& file : files) {
    const Result<std::int64_t> found = frames_in(file, features);
    frames.push_back(found ? *found : 0);
    if (!found) append(problems, found.problems());
    if (problems.size() >= kMostProblems) break;
  }
  if (!problems.empty()) return problems;
  return VideoSourcePtr(std::make_shared<FilesOfFeatures>(files, std::move(frames), features));
}

VideoSourcePtr made_up_videos(const MadeUpVideos& options) {
  return std::make_shared<MadeUpPictures>(options);
}

}  // namespace millrace
