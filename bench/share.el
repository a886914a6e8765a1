;;; share.el --- Where the time of a dispatch goes  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Clocks around `gptel-send', around our advice and around gptel's own dispatcher inside it.

;;; Code:

(defvar bench-share-times nil "Alist of clock and seconds.")

(defun bench-share-reset ()
  "Set the clocks to zero."
  (setq bench-share-times nil)
  t)

(defun bench-share-clock (name)
  "Return an advice that adds the time of a call to clock NAME."
  (lambda (function &rest args)
    (let ((start (float-time)))
      (unwind-protect (apply function args)
        (setf (alist-get name bench-share-times 0)
              (+ (- (float-time) start) (alist-get name bench-share-times 0)))))))

(defun bench-share ()
  "Return the seconds of all, of our advice and of gptel's dispatcher."
  (mapcar (lambda (name) (format "%f" (alist-get name bench-share-times 0)))
          '(send advice dispatch)))

(advice-add 'gptel-send :around (bench-share-clock 'send))
(advice-add 'gptel-curl-get-response :around (bench-share-clock 'advice) '((depth . -100)))
(advice-add 'gptel-curl-get-response :around (bench-share-clock 'dispatch) '((depth . 101)))

(provide 'share)
;;; share.el ends here
