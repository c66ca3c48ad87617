"""What makes pages that are written for a code host ones of the site: links that leave docs/ go to the repository, and
lists are written as Python-Markdown wants them. And nothing is loaded from elsewhere: neither the library that draws
diagrams nor the number of stars."""

import os
import posixpath
import re

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

LINK = re.compile(r"(\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_files(files, config):
    files.append(File.generated(config, "assets/mermaid.js", abs_src_path=os.environ["SITE_MERMAID"]))
    return files


def on_post_page(output, page, config):
    if 'class="mermaid"' in output:  # it is large, and few pages have diagrams
        output = output.replace("</head>", f'<script src="{get_relative_url("assets/mermaid.js", page.url)}"></script></head>', 1)
    return output.replace(' data-md-component="source"', "")


def on_page_markdown(markdown, page, config, files):
    docs = config["docs_dir"]
    root = os.path.dirname(config["config_file_path"])
    here = posixpath.dirname(page.file.src_uri)

    def outside(match):
        target = posixpath.normpath(posixpath.join(os.path.relpath(docs, root), here, match[2]))
        if target.startswith("docs/"):
            return match[0]
        if not os.path.exists(os.path.join(root, target)):
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}")
        kind = "tree" if os.path.isdir(os.path.join(root, target)) else "blob"
        return f"{match[1]}{config['repo_url']}/{kind}/main/{target}{match[3]}"

    lines, fenced, add, before = [], False, 0, ""
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if not fenced:
            line = LINK.sub(outside, line)
        item = None if fenced else ITEM.match(line)
        if item:
            if add == 0 and before.strip():
                lines.append("")  # a list after a paragraph
            add = 4 - len(item[0])
        elif line.strip() and not line.startswith(" "):
            # A paragraph's next line belongs to the item only in a code host's eyes if nothing is between them.
            add = add if before.strip() and not fenced else 0
        elif add > 0 and line.startswith(" "):
            line = " " * add + line
        lines.append(line)
        before = line
    return "\n".join(lines)
