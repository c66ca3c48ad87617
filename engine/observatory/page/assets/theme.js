// Before anything is drawn: the theme that was chosen, if one was.
(() => {
  let theme = null;
  try { theme = localStorage.getItem('waybill.theme'); } catch { /* storage is off */ }
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
})();
