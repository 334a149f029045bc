// The frame of every page that we write: one look, nothing loaded from elsewhere.
#pragma once

#include <string>

namespace millrace {

struct HtmlPage {
  std::string title;   ///< text
  std::string body;    ///< HTML
  std::string footer;  ///< HTML
  std::string data;    ///< JSON for programs, without "</"; empty: none
  std::string script;  ///< JavaScript that runs at the end, without "</"; empty: none may run
  int reload_s = 0;    ///< seconds after which a browser reads the page again; 0: never
};
std::string html_page(const HtmlPage& page);

/// A section with a heading, what is to be seen in it, and its content: all HTML.
std::string html_card(const std::string& heading, const std::string& lead, const std::string& content);
/// A number with its name above and a remark below.
std::string html_tile(const std::string& label, const std::string& value, const std::string& detail = {});

}  // namespace millrace
