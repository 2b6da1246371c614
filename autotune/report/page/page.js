async function copy(button) {
  const code = document.getElementById(button.dataset.copy);
  const done = () => {
    document.getElementById("copied").textContent = "Copied.";
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
  try {
    await navigator.clipboard.writeText(code.textContent);
    done();
  } catch {  // not allowed here: select it, so that it can be copied by hand, and try the old way
    getSelection().selectAllChildren(code);
    if (document.execCommand("copy")) done();
  }
}

for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button));

const table = document.getElementById("table");
if (table) {
  const body = table.tBodies[0], rows = [...body.rows], headings = [...table.tHead.rows[0].cells];
  const names = headings.map((heading) => heading.textContent.toLowerCase());
  const words = rows.map((row) => [...row.cells].flatMap((cell, column) => wordsOf(names[column], cell)));
  const filter = document.getElementById("filter"), outcome = document.getElementById("outcome");

  function wordsOf(name, cell) {  // "workers=4" finds a setting, "bf16" whatever begins so
    const text = plain(cell.textContent);
    return [`${name}=${text}`, ...text.split(/\s+/)];
  }

  function plain(text) {  // 1,024 is found as 1024, too
    return text.toLowerCase().replaceAll(",", "");
  }

  function isFound(word, own) {
    return own.some((other) => (word.includes("=") ? other === word : other.startsWith(word)));
  }

  function compare(one, other) {
    const keys = [one.dataset.key, other.dataset.key];
    if (keys[0] === undefined && keys[1] === undefined) return one.textContent.localeCompare(other.textContent);
    if (keys[0] === "" || keys[1] === "") return (keys[0] === "") - (keys[1] === "");
    return keys[0] - keys[1];
  }

  function sort(heading) {
    const column = headings.indexOf(heading), descending = heading.ariaSort === "ascending";
    for (const other of headings) other.ariaSort = "none";
    heading.ariaSort = descending ? "descending" : "ascending";
    const ordered = [...rows].sort((one, other) => {
      const cells = [one.cells[column], other.cells[column]];
      const isEmpty = cells.some((cell) => cell.dataset.key === "");
      return compare(...cells) * (descending && !isEmpty ? -1 : 1);  // what is empty stays last
    });
    body.append(...ordered);
  }

  function show() {
    const wanted = plain(filter.value).split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      const fits = wanted.every((word) => isFound(word, words[index]));
      row.hidden = !(fits && (!outcome.value || row.dataset.outcome === outcome.value));
      shown += !row.hidden;
    });
    document.getElementById("shown").textContent = `${shown} of ${rows.length}`;
  }

  for (const heading of headings) heading.firstElementChild.addEventListener("click", () => sort(heading));
  filter.addEventListener("input", show);
  outcome.addEventListener("change", show);
}

async function draw(figure) {
  const plot = figure.querySelector(".plot");
  try {
    const specification = JSON.parse(figure.querySelector("script").textContent);
    await vegaEmbed(plot, specification, { actions: false, renderer: "svg", ast: true });
    plot.querySelector("svg").ariaHidden = "true";  // the label of the whole and the table of numbers say what it shows
  } catch (error) {
    plot.textContent = `This chart could not be drawn here (${error.message}); its numbers are below.`;
  }
}

for (const figure of document.querySelectorAll("figure")) draw(figure);
