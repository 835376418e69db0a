// Elements, and tables whose rows stay the same elements from one look to the next: a button that
// somebody is about to press does not go away under the finger.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "for" || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

export function setText(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

export function card(id, title, className = "") {
  const heading = h("h2", { id: `${id}-title`, textContent: title });
  const about = h("span", { className: "quiet" });
  const head = h("div", { className: "head" }, heading, about);
  const element = h("section", { id, className: `card ${className}` }, head);
  return { element, head, about };
}

// Who hears the page is told of which part a table or a chart is, and can scroll it by keys.
export function nameParts(main) {
  for (const heading of main.querySelectorAll(".card h2")) {
    const part = heading.closest(".card");
    const named = [part, ...part.querySelectorAll("table, dl, .scroll, .chart")];
    for (const element of named) element.setAttribute("aria-labelledby", heading.id);
    for (const chart of part.querySelectorAll(".chart")) chart.setAttribute("role", "img");
    for (const wide of part.querySelectorAll(".scroll")) {
      wide.setAttribute("role", "group");
      wide.tabIndex = 0;
    }
  }
}

export function bar() {
  const fill = h("i");
  const element = h("span", { className: "bar" }, fill);
  return {
    element,
    set(share) {
      fill.style.width = `${100 * Math.min(1, Math.max(0, share || 0))}%`;
    },
  };
}

export function meter(name) {
  const value = h("span");
  const drawn = bar();
  const line = h("div", { className: "line" }, h("span", { textContent: name }), value);
  const element = h("div", { className: "meter" }, line, drawn.element);
  return {
    element,
    set(text, share) {
      setText(value, text);
      drawn.set(share);
    },
  };
}

export function facts(names) {
  const values = names.map(() => h("dd"));
  const pairs = names.map((name, i) => h("div", {}, h("dt", { textContent: name }), values[i]));
  const element = h("dl", {}, ...pairs);
  return {
    element,
    set(texts) {
      texts.forEach((text, i) => {
        setText(values[i], text);
        values[i].title = text;
      });
    },
  };
}

// columns: {head, text(item), share(item)?, className?, act(item)?}
//   share: a bar before the text; act: the text is a button that calls it, and does what `does` says
export function table(columns, key, nothing) {
  const body = h("tbody");
  const heads = columns.map((c) => h("th", { textContent: c.head, className: c.className || "", scope: "col" }));
  const drawn = h("table", {}, h("thead", {}, h("tr", {}, ...heads)), body);
  const empty = h("p", { className: "empty", textContent: nothing });
  const element = h("div", { className: "scroll" }, drawn, empty);
  const rows = new Map();

  function made() {
    const row = { cells: [], item: null, element: h("tr") };
    for (const column of columns) {
      const cell = h("td", { className: column.className || "" });
      const text = column.act
        ? h("button", { type: "button", onclick: () => column.act(row.item) })
        : h("span");
      const share = column.share ? bar() : null;
      if (share) cell.append(share.element);
      cell.append(text);
      row.cells.push({ cell, text, share });
      row.element.append(cell);
    }
    return row;
  }

  function set(items) {
    const keys = items.map(key);
    for (const [name, row] of rows) {
      if (!keys.includes(name)) {
        row.element.remove();
        rows.delete(name);
      }
    }
    items.forEach((item, i) => {
      let row = rows.get(keys[i]);
      if (!row) {
        row = made();
        rows.set(keys[i], row);
      }
      row.item = item;
      columns.forEach((column, c) => {
        const said = column.text(item);
        setText(row.cells[c].text, said);
        if (column.does) row.cells[c].text.setAttribute("aria-label", column.does(item));
        if ((column.className || "").includes("cut")) row.cells[c].cell.title = said;
        if (column.share) row.cells[c].share.set(column.share(item));
      });
      if (body.children[i] !== row.element) body.insertBefore(row.element, body.children[i] || null);
    });
    drawn.hidden = !items.length;
    empty.hidden = items.length > 0;
  }

  set([]);
  return { element, set };
}
