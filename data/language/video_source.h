// Sources of the frames of videos: files of features, or made-up ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/result.h"

namespace millrace {

/// The frames of videos. Implementations are thread-safe.
class VideoSource {
 public:
  virtual ~VideoSource() = default;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t num_frames(std::int64_t video) const = 0;
  /// Returns the first `frames` frames: float32 [frames, features]. Throws DataError.
  virtual at::Tensor read(std::int64_t video, std::int64_t frames) const = 0;
  virtual std::string name_of(std::int64_t) const { return {}; }  ///< returns the video's file; empty: none
  virtual std::string describe() const = 0;
  virtual std::string fingerprint() const = 0;
};
using VideoSourcePtr = std::shared_ptr<const VideoSource>;

/// A file of features and the place that mentions it.
struct VideoFile {
  std::string path;       ///< NPY, floating [frames, features]
  std::string mentioned;  ///< "train.captions:17"
};
/// Opens files of features. It reads headers and sizes now, and the features on demand. Problems: files that
/// are missing, cut off, without frames, with another number of features, or no arrays of frames. It reports
/// all of them, up to ten.
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
