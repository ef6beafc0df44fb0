// Code and tables that scroll take the keyboard's focus, after the theme has wrapped
// them; the search has a name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
addEventListener("load", () => setTimeout(() => {
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach((part) => {
    part.tabIndex = 0;
  });
}, 300));
