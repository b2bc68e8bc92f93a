// Texts of a page that are hard to read: less than 4.5 : 1 against what is behind them, 3 : 1 when they are large.
() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (color) => {
    if (!known.has(color)) {
      brush.clearRect(0, 0, 1, 1);
      brush.fillStyle = color;
      brush.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = brush.getImageData(0, 0, 1, 1).data;
      known.set(color, [r, g, b, a / 255]);
    }
    return known.get(color);
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const luminance = ([r, g, b]) => {
    const linear = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] > 0) layers.push(color);
      if (color[3] === 1) break;
    }
    return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const opacity = (element) => {
    let product = 1;
    for (let at = element; at; at = at.parentElement) product *= Number(getComputedStyle(at).opacity);
    return product;
  };
  const hidden = (element) =>
    !element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) ||
    element.closest(":disabled, [aria-disabled=true], option, title, .visually-hidden, .skip, svg title");

  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const text = node.textContent.trim();
    if (!text || hidden(element)) continue;
    const style = getComputedStyle(element);
    const color = rgba(element instanceof SVGElement ? style.fill : style.color);
    const below = behind(element);
    const seen = over([color[0], color[1], color[2], color[3] * opacity(element)], below);
    const [light, dark] = [luminance(seen), luminance(below)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) {
      const where = element.tagName.toLowerCase() + [...element.classList].map((name) => "." + name).join("");
      if (!found.has(where)) found.set(where, `${where} “${text.slice(0, 40)}” ${ratio.toFixed(2)} : 1`);
    }
  }
  return [...found.values()];
}
