// JPEG, PNG and WebP, as labelled images are read.
#include "data/readers/decode_image.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  // Smaller limits than in training: large images that are whole would take most of the time.
  constexpr JpegLimits kLimits{.pixels = 1 << 18, .scans = 32, .scan_pixels = 1 << 20};
  RgbImage image;
  std::string error;
  if (!decode_image(std::string(text_of(data, size)), image, error, kLimits))
    return require(!error.empty()), 0;
  const std::int64_t pixels = std::int64_t{image.width} * image.height;
  require(pixels > 0 && pixels <= kLimits.pixels);
  require(image.pixels.size() == static_cast<std::size_t>(3 * pixels));
  return 0;
}
