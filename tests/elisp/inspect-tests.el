;;; inspect-tests.el --- The views and the menu  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What the scripted backend answers, as the views show it.

;;; Code:

(require 'test-helper)
(require 'gptel-retention)

(defconst inspect-tests-digest (apply #'concat (make-list 8 "0a1b2c3d"))
  "A digest.")

(defmacro inspect-tests-with (script &rest body)
  "Run BODY in a conversation's buffer with a backend that follows SCRIPT."
  (declare (indent 1) (debug t))
  `(test-helper-with-backend ,script
     (save-window-excursion
       (with-temp-buffer
         (rename-buffer "chat" t)
         (setq gptel-retention-id "abc")
         (unwind-protect
             (progn ,@body)
           (dolist (name '("status" "explain" "log" "object" "sections"))
             (when-let* ((buffer (get-buffer
                                  (format "*retention %s*" name))))
               (kill-buffer buffer))))))))

(defun inspect-tests-text (buffer)
  "Return the text of BUFFER."
  (with-current-buffer buffer
    (buffer-substring-no-properties (point-min) (point-max))))

(ert-deftest inspect-indicator-is-short ()
  "The indicator has the delivered and the share; nothing where none is."
  (should
   (equal (mapcar #'gptel-retention-inspect--short
                  '((:error (error "x"))
                    (:total 0)
                    (:total 200 :reused 199)
                    (:total 3 :reused 3 :sections [(:name "a")])
                    (:total 100 :reused 0 :sections [(:name "a") (:name "b")]
                     :reminders ["c"])))
          '(" R!" " R" " R 99%%" " R:1 100%%" " R:2+1 0%%"))))

(ert-deftest inspect-indicator-explains-itself ()
  "The help text names what was delivered, and why."
  (with-temp-buffer
    (gptel-retention-inspect-note
     '( :sections [(:name "git-state" :reason "changed")] :reminders ["r"]
        :restored 3 :reused 512 :total 1024 :seconds 0.0021
        :reasons [(:code "edited" :detail "message 4") (:code "first")]))

    (should (equal (get-text-property 0 'help-echo
                                      (gptel-retention-inspect-indicator))
                   "Retention
Sections delivered: git-state (changed)
Reminders delivered: r
Earlier deliveries put back: 3
Repeats the request before: 50 % of 1k
Took: 2 ms
edited: message 4
first
mouse-1: menu"))))

(ert-deftest inspect-status-shows-the-requests ()
  "The status names backend, id and the last requests with their reasons."
  (inspect-tests-with
      '(("inspect/requests"
         . [(:result
             ( :id "abc" :turns 2 :refusal (:step 1 :status 400)
               :requests
               [( :request 7 :turn 2 :origin "loop" :at 0 :bytes 2048
                  :parent 6 :kept 3 :new 2 :sections ["a" "b"]
                  :reminders [] :reasons [(:code "edited" :detail "")])]))
            (:result (:id "abc" :turns 0 :requests []))]))
    (let ((text (inspect-tests-text (gptel-retention-status))))
      (should (string-match-p
               (rx bos "Conversation in chat\nId:      abc\n"
                   "Backend: ready, version fake\nStore:   none\n\n"
                   "Requests in 2 turns, the newest first\n"
                   "The provider refused an edited request (HTTP 400): edits "
                   "are held back at step 1.\n"
                   "#7    turn 2   loop   " (+ nonl)
                   "       2k  3 kept, 2 new\n"
                   "      sections: a, b\n      edited\n" eos)
               text)))
    (with-current-buffer "*retention status*"
      (revert-buffer))
    (should (string-suffix-p "None so far.\n"
                             (inspect-tests-text "*retention status*")))))

(ert-deftest inspect-status-needs-no-conversation ()
  "Before the first request the status asks nothing."
  (inspect-tests-with nil
    (setq gptel-retention-id nil)

    (should (string-prefix-p "Conversation in chat\nId:      none yet\n"
                             (inspect-tests-text (gptel-retention-status))))
    (should-error (gptel-retention-log) :type 'user-error)
    (should-not (test-helper-methods))))

(defun inspect-tests-explained (number)
  "Return a step that explains request NUMBER of three."
  `( :result
     ( :id "abc" :total 3
       :requests
       [( :request ,number :turn 2 :at 0 :origin "loop" :provider "m at P"
          :lines
          [(:label "Provider" :text "m at P")
           (:label "Compared" :text "The list of tools changed (added: fetch), \
so the provider has to read it all again.")
           (:label "  now" :text "'two  spaces'")
           (:label "Reason" :text ,(make-string 75 ?x))])])))

(defun inspect-tests-asked ()
  "Return the requests that the backend was asked to explain."
  (mapcar (lambda (entry) (plist-get (plist-get entry :params) :request))
          (test-helper-log "inspect/explain")))

(ert-deftest inspect-explain-tells-the-last-request ()
  "The lines of the backend stand below a heading, 80 columns wide."
  (inspect-tests-with `(("inspect/explain" . [,(inspect-tests-explained 3)]))
    (should (string-match-p
             (rx bos "Request 3 of 3 in chat (loop), turn 2, " (+ nonl) "\n\n"
                 "Provider   m at P\n"
                 "Compared   The list of tools changed (added: fetch), so the "
                 "provider has to read\n"
                 "           it all again.\n"
                 "  now      'two  spaces'\n"
                 "Reason     " (= 75 "x") "\n" eos)
             (inspect-tests-text (gptel-retention-explain))))
    (should (equal (mapcar (lambda (entry) (plist-get entry :params))
                           (test-helper-log "inspect/explain"))
                   '((:id "abc" :request 0 :limit 1))))))

(ert-deftest inspect-explain-moves-between-requests ()
  "Keys lead to the requests on either side, and ask again for this one."
  (inspect-tests-with
      `(("inspect/explain" . [,(inspect-tests-explained 3)
                              ,(inspect-tests-explained 2)
                              ,(inspect-tests-explained 2)
                              ,(inspect-tests-explained 3)
                              ,(inspect-tests-explained 1)]))
    (with-current-buffer (gptel-retention-explain)
      (call-interactively (key-binding "p"))
      (call-interactively (key-binding "g"))
      (call-interactively (key-binding "n"))
      (let ((current-prefix-arg 2))
        (call-interactively (key-binding "p")))
      (should (string-prefix-p "Request 1 of 3" (buffer-string)))
      (should-error (call-interactively (key-binding "p")) :type 'user-error))
    (let ((current-prefix-arg 2))
      (call-interactively #'gptel-retention-explain))

    (should (equal (inspect-tests-asked) '(0 2 2 3 1 2)))))

(ert-deftest inspect-explain-needs-a-request ()
  "Without one there is nothing to explain, and nowhere to go."
  (inspect-tests-with
      '(("inspect/explain" . [(:result (:id "abc" :total 0 :requests []))]))
    (with-current-buffer (gptel-retention-explain)
      (should (equal (buffer-string) "No request of chat so far.\n"))
      (should-error (gptel-retention-explain-previous) :type 'user-error))))

(ert-deftest inspect-status-leads-to-the-explanation ()
  "The number of a request is a button that explains it."
  (inspect-tests-with
      `(("inspect/requests"
         . [(:result ( :id "abc" :turns 1 :requests
                       [( :request 1234567 :turn 1 :origin "buffer" :at 0
                          :bytes 5 :kept 0 :new 1)]))])
        ("inspect/explain" . [,(inspect-tests-explained 2)]))
    (with-current-buffer (gptel-retention-status)
      (goto-char (point-min))
      (forward-button 1)
      (should (looking-at-p "#1234567 turn 1"))
      (push-button))

    (should (equal (inspect-tests-asked) '(1234567)))))

(ert-deftest inspect-log-shows-rows-and-deliveries ()
  "A row has its digest as a button; a delivery says what it carried."
  (inspect-tests-with
      `(("inspect/log"
         . [(:result
             ( :id "abc" :total 5
               :rows [( :row 1 :after 0 :face "both" :role "user"
                        :digest ,inspect-tests-digest :bytes 10)
                      ( :row 2 :after 1 :face "both" :role "user"
                        :digest ,inspect-tests-digest :bytes 20 :round 3
                        :delivery
                        ( :text ,inspect-tests-digest :stands_after 1
                          :inside :json-false :turn 1 :reminders ["r"]
                          :sections [( :name "a" :inactive t
                                       :body ,inspect-tests-digest)])
                        :body "one\ntwo")]))])
        ("inspect/object"
         . [(:result ( :digest ,inspect-tests-digest :kind "delivery"
                       :bytes 5 :text "hello"))]))
    (let ((buffer (gptel-retention-log t)))
      (should (equal (inspect-tests-text buffer)
                     "Log of chat: 5 rows, the last 2 shown
    1  user      both      0a1b2c3d0a1b       10
    2  user      both      0a1b2c3d0a1b       20  round 3
       delivery of turn 1: 0a1b2c3d0a1b
         a (inactive) 0a1b2c3d0a1b
         reminders: r
       | one
       | two
"))
      (with-current-buffer buffer
        (goto-char (point-min))
        (forward-button 1)
        (push-button)))

    (should (equal (inspect-tests-text "*retention object*")
                   (format "delivery %s, 5 bytes\n\nhello\n"
                           inspect-tests-digest)))
    (should (equal (mapcar (lambda (entry) (plist-get entry :params))
                           (test-helper-log "inspect/log"))
                   '((:id "abc" :bodies t :limit 200))))
    (should (equal (mapcar (lambda (entry) (plist-get entry :params))
                           (test-helper-log "inspect/object"))
                   `((:digest ,inspect-tests-digest))))))

(ert-deftest inspect-object-of-a-section-is-readable ()
  "A stored section is shown as text, one without a body as such."
  (inspect-tests-with
      '(("inspect/object"
         . [(:result ( :digest "ab" :kind "section" :bytes 9
                       :section ( :name "git-state" :title "Git state"
                                  :kind "fact" :body "one\ntwo")))
            (:result ( :digest "ab" :kind "section" :bytes 9
                       :section ( :name "git-state" :title "Git state"
                                  :kind "fact" :body :null)))]))
    (should (equal (inspect-tests-text (gptel-retention-show "ab"))
                   "section ab, 9 bytes\n\nGit state (git-state, fact)\n
one\ntwo\n"))
    (should (string-suffix-p "\n\nNothing to tell.\n"
                             (inspect-tests-text
                              (gptel-retention-show "ab"))))))

(ert-deftest inspect-answers-come-in-files-too ()
  "P2: an answer that no frame holds is read from its file."
  (inspect-tests-with nil
    (gptel-retention-rpc-ensure)
    (let* ((text (json-serialize
                  `( :digest "ab" :kind "message" :bytes 70000
                     :text ,(make-string 70000 ?é))))
           (file (expand-file-name "answer.json"
                                   (gptel-retention-rpc-directory))))
      (let ((coding-system-for-write 'binary))
        (write-region text nil file nil 'silent))
      (cl-letf (((symbol-function 'gptel-retention-rpc-call)
                 (lambda (&rest _)
                   (list :file file :bytes (length text)
                         :sha256 (secure-hash 'sha256 text)))))
        (should (string-suffix-p "éé\n" (inspect-tests-text
                                         (gptel-retention-show "ab")))))
      (should-not (file-exists-p file)))))

(ert-deftest inspect-object-that-is-unknown-is-a-user-error ()
  "What the backend refuses is shown, and no buffer is made."
  (inspect-tests-with
      '(("inspect/object"
         . [(:error (:code -32000 :message "no object ff"
                     :data (:code "unknown_object")))]))
    (should (equal (should-error (gptel-retention-show "ff"))
                   '(user-error "[retention] Retention backend refused: \
\"unknown_object\", \"no object ff\"")))
    (should-not (get-buffer "*retention object*"))))

(ert-deftest inspect-object-at-point ()
  "A digest in any text is found at point."
  (with-temp-buffer
    (insert "see 0a1b2c3d4e here")
    (goto-char 8)
    (should (equal (gptel-retention-inspect--digest-at-point) "0a1b2c3d4e"))
    (goto-char (point-min))
    (should-not (gptel-retention-inspect--digest-at-point))))

(ert-deftest inspect-sections-show-what-they-say ()
  "The list has the selection with its bodies, then the others."
  (inspect-tests-with nil
    (let ((gptel-retention-section-definitions nil)
          (gptel-retention-sections '(a b c d)))
      (gptel-retention-define-section 'a :body (lambda () "Body."))
      (gptel-retention-define-section 'b :body #'ignore)
      (gptel-retention-define-section 'c :body (lambda () (error "Boom")))
      (gptel-retention-define-section 'e :body #'ignore :doc "Another.")
      (let (text)
        (test-helper-messages
          (setq text (inspect-tests-text (gptel-retention-list-sections))))

        (should (equal (replace-regexp-in-string "([0-9]+ ms)" "(N ms)" text)
                       "Sections of chat

a (N ms)
Body.

b (N ms)
Nothing to tell.

c (N ms)
Could not be read: Boom

d (N ms)
Could not be read: not defined

Not selected
e: Another.
"))))))

(ert-deftest inspect-menu-has-only-commands ()
  "Each key of the menu runs a command that exists."
  (dolist (key '("s" "e" "l" "o" "S" "m" "g" "F" "r" "i"))
    (let ((command (cl-find-if
                    (lambda (value)
                      (and (symbolp value)
                           (string-prefix-p "gptel-retention-"
                                            (symbol-name value))))
                    (flatten-tree
                     (transient-get-suffix 'gptel-retention-menu key)))))
      (should (commandp command)))))

(provide 'inspect-tests)
;;; inspect-tests.el ends here
