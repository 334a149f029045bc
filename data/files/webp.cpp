#include "data/files/webp.h"

#include <dlfcn.h>

#include <cstdint>

namespace millrace {
namespace {

/// The two functions of libwebp's stable interface (webp/decode.h) that are used. Null: not installed.
struct Library {
  int (*info)(const std::uint8_t* data, std::size_t size, int* width, int* height) = nullptr;
  std::uint8_t* (*decode_rgba_into)(const std::uint8_t* data, std::size_t size, std::uint8_t* buffer,
                                    std::size_t buffer_size, int stride) = nullptr;

  Library() {
    void* handle = nullptr;
    for (const char* name : {"libwebp.so.7", "libwebp.so"}) {
      if ((handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    }
    if (!handle) return;
    info = reinterpret_cast<decltype(info)>(::dlsym(handle, "WebPGetInfo"));
    decode_rgba_into = reinterpret_cast<decltype(decode_rgba_into)>(::dlsym(handle, "WebPDecodeRGBAInto"));
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

}  // namespace

bool is_webp(std::string_view bytes) {
  return bytes.size() >= 12 && bytes.starts_with("RIFF") && bytes.substr(8, 4) == "WEBP";
}

Status webp_library() {
  if (library().info && library().decode_rgba_into) return Ok{};
  return Problem{"libwebp", "is not installed, and WebP images need it",
                 "on Debian: apt-get install libwebp7"};
}

Result<Image> decode_webp(std::string_view bytes, const std::string& name, std::int64_t most_pixels) {
  if (const Status there = webp_library(); !there) return there.problems();
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const auto wrong = [&](const std::string& what) {
    return Problem{name, "cannot be decoded: " + what, "the file is damaged, or an animation"};
  };
  int width = 0, height = 0;
  if (!library().info(data, bytes.size(), &width, &height)) return wrong("no WebP header");
  if (std::int64_t{width} * height > most_pixels) return wrong("too many pixels");
  const std::size_t pixels = static_cast<std::size_t>(width) * static_cast<std::size_t>(height);
  Image image{.height = height, .width = width, .channels = 3, .pixels = std::string(4 * pixels, '\0')};
  if (!library().decode_rgba_into(data, bytes.size(), reinterpret_cast<std::uint8_t*>(image.pixels.data()),
                                  image.pixels.size(), 4 * width))
    return wrong("WebP data is cut off or corrupt");
  lay_on_black(image);
  return image;
}

}  // namespace millrace
