// Sources of the frames of videos: files of features, or made-up ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/result.h"

namespace millrace {

/// const and thread-safe.
class VideoSource {
 public:
  virtual ~VideoSource() = default;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t num_frames(std::int64_t video) const = 0;
  /// The first `frames` frames: float32 [frames, features]. Throws DataError.
  virtual at::Tensor read(std::int64_t video, std::int64_t frames) const = 0;
  virtual std::string name_of(std::int64_t) const { return {}; }  ///< its file; empty: it has none
  virtual std::string describe() const = 0;
  virtual std::string fingerprint() const = 0;
};
using VideoSourcePtr = std::shared_ptr<const VideoSource>;

/// A file of features and who asks for it.
struct VideoFile {
  std::string path;       ///< NPY, floating [frames, features]
  std::string mentioned;  ///< "train.captions:17"
};
/// Headers and sizes are read now, features when they are asked for. Problems: a file that is missing, no
/// array of frames, of other `features`, without frames, or cut off; all of them, up to ten.
Result<VideoSourcePtr> videos_in_files(const std::vector<VideoFile>& files, std::int64_t features);

struct MadeUpVideos {
  std::int64_t videos = 0;
  std::int64_t shortest = 1, longest = 1;  ///< frames
  std::int64_t features = 1;
  std::uint64_t seed = 0;
};
/// Each video has a picture of its own that all of its frames show, with noise.
VideoSourcePtr made_up_videos(const MadeUpVideos& options);

}  // namespace millrace
