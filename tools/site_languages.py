"""Gives each page of the site the navigation and the search of its language.

A hook of MkDocs (``hooks`` in mkdocs.yml). A Chinese page is a file ``NAME.zh.md`` beside
``NAME.md``. The last section of the navigation in mkdocs.yml is the complete navigation of the
Chinese pages. Each language has its own search index, in which words of the other do not rank; the
Chinese one also has the English pages that are not translated. Labels of the theme follow the page
in ``site_theme/partials/language.html``.
"""

import json
from pathlib import Path
from typing import Any

import jieba
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

INDEX = "search/search_index.json"
CHINESE_BASE = "zh"
"""Folder of the Chinese search index: browsers load ``INDEX`` below a page's base address."""
PUNCTUATION = r"[\s\u200b\u2018-\u201d\u3000-\u303f\uff00-\uff0f\uff1a-\uff20\-]+"
"""Separates words of Chinese text; the word splitter surrounds words with U+200B."""

_chinese = Navigation([], [])
"""Navigation of the Chinese pages."""
_versions: dict[str, dict[str, Page]] = {}
"""The versions of each page by language, by the path of the English one."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Keep the word splitter's cache out of the folder for temporary files, which users share."""
    cache = Path(config.config_file_path).parent / ".cache/jieba"
    cache.mkdir(parents=True, exist_ok=True)
    jieba.dt.tmp_dir = str(cache)
    jieba.setLogLevel("WARNING")
    return config


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Divide the navigation by language."""
    del config, files
    by_language: dict[str, list[Page]] = {"en": [], "zh": []}
    _versions.clear()
    for page in nav.pages:
        language = "zh" if is_chinese(page) else "en"
        by_language[language].append(page)
        _versions.setdefault(original(page), {})[language] = page
    for pages in by_language.values():
        for page, before, after in zip(pages, [None, *pages], [*pages[1:], None], strict=False):
            page.previous_page, page.next_page = before, after
    section = nav.items.pop()
    for child in section.children:
        child.parent = None
    _chinese.items, _chinese.pages = section.children, by_language["zh"]
    _chinese.homepage = _chinese.pages[0]
    return Navigation(nav.items, by_language["en"])


def on_page_context(
    context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Navigation
) -> dict[str, Any]:
    """Set navigation, search and the other language of a page."""
    links = {"en": nav.homepage, "zh": _chinese.homepage, **_versions.get(original(page), {})}
    config.extra["alternate"] = [
        {"name": name, "lang": language, "link": links[language].url}
        for language, name in (("en", "English"), ("zh", "中文"))
    ]
    if is_chinese(page):
        context["nav"] = _chinese
        context["base_url"] = f"{context['base_url']}/{CHINESE_BASE}/"
    return context


def on_post_build(config: MkDocsConfig) -> None:
    """Divide the search index by language."""
    site = Path(config.site_dir)
    index = json.loads((site / INDEX).read_text(encoding="utf-8"))
    translated = [pages for pages in _versions.values() if "zh" in pages]
    chinese_urls = {pages["zh"].url for pages in translated}
    english_urls = {pages["en"].url for pages in translated}
    english, chinese = [], []
    for entry in index["docs"]:
        url = entry["location"].partition("#")[0]
        if url not in chinese_urls:
            english.append(entry)
        if url not in english_urls:
            chinese.append({**entry, "location": f"../{entry['location']}"})
    _write(site / INDEX, {**index, "docs": english})
    chinese_config = {**index["config"], "lang": ["en", "zh"], "separator": PUNCTUATION}
    _write(site / CHINESE_BASE / INDEX, {"config": chinese_config, "docs": chinese})


def is_chinese(page: Page) -> bool:
    """Return whether a page is in Chinese."""
    return page.file.src_uri.endswith(".zh.md")


def original(page: Page) -> str:
    """Return the path of a page's English version."""
    return page.file.src_uri.replace(".zh.md", ".md")


def _write(path: Path, index: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
