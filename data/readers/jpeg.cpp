#include "data/readers/jpeg.h"

#include <turbojpeg.h>

#include <algorithm>
#include <memory>

namespace millrace {
namespace {

constexpr std::int64_t kMaxPixels = 64 << 20;

struct Destroy {
  void operator()(void* handle) const { tjDestroy(handle); }
};

/// Adobe's inverted CMYK to RGB.
void cmyk_to_rgb(const std::vector<std::uint8_t>& cmyk, std::vector<std::uint8_t>& rgb) {
  for (std::size_t i = 0, o = 0; i + 3 < cmyk.size(); i += 4) {
    const int k = cmyk[i + 3];
    for (int c = 0; c < 3; ++c)
      rgb[o++] = static_cast<std::uint8_t>(cmyk[i + static_cast<std::size_t>(c)] * k / 255);
  }
}

}  // namespace

bool decode_jpeg(const std::string& bytes, int at_least, Image& image, std::string& error) {
  thread_local std::unique_ptr<void, Destroy> handle(tjInitDecompress());
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0, height = 0, subsampling = 0, colour = 0;
  const auto fail = [&] {
    error = tjGetErrorStr2(handle.get());
    return false;
  };
  if (tjDecompressHeader3(handle.get(), data, bytes.size(), &width, &height, &subsampling, &colour) != 0)
    return fail();
  if (std::int64_t{width} * height > kMaxPixels) {
    error = std::to_string(width) + "x" + std::to_string(height) + " pixels are more than 64 megapixels";
    return false;
  }
  for (int denominator : {8, 4, 2, 1}) {
    const tjscalingfactor scale{1, denominator};
    const int w = TJSCALED(width, scale), h = TJSCALED(height, scale);
    if (denominator > 1 && (at_least == 0 || std::min(w, h) < at_least)) continue;
    width = w;
    height = h;
    break;
  }
  const bool cmyk = colour == TJCS_CMYK || colour == TJCS_YCCK;
  image = {.width = width,
           .height = height,
           .kind = cmyk                  ? JpegKind::Cmyk
                   : colour == TJCS_GRAY ? JpegKind::Grey
                                         : JpegKind::Rgb};
  image.pixels.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  std::vector<std::uint8_t> raw;
  if (cmyk) raw.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 4);
  // A warning (premature end, corrupt data) counts as damage: tjDecompress2 returns -1 for it as well.
  if (tjDecompress2(handle.get(), data, bytes.size(), cmyk ? raw.data() : image.pixels.data(), width, 0,
                    height, cmyk ? TJPF_CMYK : TJPF_RGB, TJFLAG_ACCURATEDCT) != 0)
    return fail();
  if (cmyk) cmyk_to_rgb(raw, image.pixels);
  return true;
}

}  // namespace millrace
